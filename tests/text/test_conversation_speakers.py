import pytest

from hybridmem.text.conversation import bare_question, frequent_prefixes, named_speakers

PEOPLE = {"ana", "ben k", "will"}


def test_a_prefix_counts_from_three_memories_and_one_percent():
    assert frequent_prefixes({"ana": 3, "note": 2}, 10) == {"ana": 3}
    assert frequent_prefixes({"ana": 10, "note": 9}, 1000) == {"ana": 10}


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("What did Ana buy?", {"ana"}),
        ("what did ana's sister buy?", {"ana"}),
        ("Banana bread?", set()),
        ("Did Ben and Ana meet?", {"ana", "ben k"}),
        ("Will it rain?", set()),
        ("What did Will say?", {"will"}),
        ("Where do I live?", set()),
    ],
)
def test_named_speakers(question, named):
    assert named_speakers(question, PEOPLE) == named


def test_the_user_is_meant_by_i_and_my():
    roles = {"user", "assistant"}
    assert named_speakers("Where do I live?", roles) == {"user"}
    assert named_speakers("What did you recommend for my cat?", roles) == set()
    assert named_speakers("What does the user like?", roles) == set()
    assert named_speakers("What did Ana give me?", roles | {"ana"}) == {"ana"}


@pytest.mark.parametrize(
    ("question", "bare"),
    [
        ("Where does Ana's sister live?", "Where does sister live?"),
        ("Where did Ben K. go?", "Where did . go?"),
        ("Ana Ben?", "Ana Ben?"),
        ("Will Will come?", "Will come?"),
        ("Where does the user live?", "Where does the user live?"),
    ],
)
def test_the_question_without_names(question, bare):
    assert bare_question(question, {*PEOPLE, "user"}) == bare


def test_names_without_spaces_around_them():
    assert bare_question("由美はどこに住んでいますか", {"由美"}) == "はどこに住んでいますか"
    assert named_speakers("由美はどこに住んでいますか", {"由美"}) == {"由美"}
