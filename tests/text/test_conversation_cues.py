import pytest

from hybridmem.text.conversation import (
    ASKS,
    FIRST_PERSON,
    TIME_WORD,
    about_assistant,
    about_user,
    asks_when,
    cues_of,
    is_person,
    question_sentences,
    recall_query,
    speaker_of,
    spoken,
)


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        ("Ana: I moved.", "ana"),
        ("Ana Maria: I moved.", "ana maria"),
        ("  User: hello", "user"),
        ("**Ana:** I moved.", "ana"),
        ("**Ana**: I moved.", "ana"),
        ("Ana (3:14 pm): I moved.", "ana"),
        ("小明：我搬到了里斯本。", "小明"),
        ("Note: the door is open", None),
        ("Title: A house", None),
        ("I moved.", None),
        ("At 10:30 we met", None),
        ("https://example.org", None),
        ("A sentence of more than thirty letters before it: no", None),
    ],
)
def test_the_speaker_of_a_text(text, speaker):
    assert speaker_of(text) == speaker
    assert speaker_of(text, " Ben  K ") == "ben k"


def test_a_text_without_its_speaker():
    assert spoken("Ana: Ben: hello") == "Ben: hello"
    assert spoken("**Ana:** hello") == "hello"
    assert spoken("Ana (3:14 pm): hello") == "hello"
    assert spoken("小明：你好：") == "你好："
    assert spoken("hello") == "hello"


@pytest.mark.parametrize(
    ("text", "cues"),
    [
        ("Ana: I saw him yesterday. And you?", ASKS | FIRST_PERSON | TIME_WORD),
        ("My dog is brown", FIRST_PERSON),
        ("The dog came in 2021", TIME_WORD),
        ("Where is it？", ASKS),
        ("May: nothing", 0),
        ("Der Hund ist braun", 0),
    ],
)
def test_cues(text, cues):
    assert cues_of(text) == cues


def test_question_sentences():
    assert question_sentences("Ana: I did it! And you? Where? Fine.") == "And you? Where?"
    assert question_sentences("Nothing asked.") == ""
    assert question_sentences("どこ？ここ。") == "どこ？"


def test_kinds_of_questions():
    assert asks_when("When did Ana call?")
    assert asks_when("And since when?")
    assert not asks_when("Whenever she calls")
    assert about_user("What did I buy?")
    assert not about_user("What did Ina buy?")
    assert about_assistant("What did you recommend to me?")
    assert not about_assistant("Do you know where I live?")


def test_roles_are_not_persons():
    assert is_person("ana")
    assert is_person(None)
    assert not is_person("user")
    assert not is_person("assistant")


def test_a_message_with_few_content_words_is_searched_with_those_before_it():
    assert recall_query([]) == ""
    assert recall_query(["one about Ana"]) == "one about Ana"
    long = "Which red bicycle does Ben ride?"  # red, bicycle, ben, ride
    assert recall_query(["Ana likes tea", long]) == long
    assert recall_query(["Ana likes tea", "And when was that?"]) == "Ana likes tea And when was that?"
    assert recall_query(["a", "b", "And then?"], window=3) == "a b And then?"
    assert recall_query(["a", "b", "And then?"], window=1) == "And then?"
