import pytest

from hybridmem.errors import ConfigError
from hybridmem.evaluation.evaluate import Calibration, Case, calibrate, threshold
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.question import confidence

TOWNS = ["Lisbon", "Oslo", "Quito", "Hanoi", "Perth", "Dakar", "Lima", "Cairo", "Turin", "Kyoto"]
FACTS = ["moved to", "liked the food in", "lost a suitcase in"]


def test_confidence_by_arithmetic():
    assert confidence(coverage=[0.2, 0.8], cosines=[0.6, 0.4]) == pytest.approx((0.8 + (0.6 + 0.4) / 2) / 2)
    assert confidence(coverage=[0.2, 0.8]) == 0.8
    assert confidence(cosines=[0.1, 0.9, 0.5, 0.5, 0.5, 0.5]) == pytest.approx((0.9 + 4 * 0.5) / 5)
    assert confidence(coverage=[0, 0, 0, 0, 0, 1.0]) == 0.0  # only the first five hits count
    assert confidence() == 0.0
    assert confidence(cosines=[-0.5]) == 0.0


def test_threshold_is_the_conformal_quantile():
    values = [number / 100 for number in range(100)]  # 0.00 … 0.99
    # ⌊0.05 · 101⌋ = 5: the fifth smallest
    assert threshold(values) == 0.04
    assert sum(value < threshold(values) for value in values) / 100 <= 0.05
    assert threshold(values, rate=0.2) == 0.19
    assert threshold([0.5] * 19) == 0.5
    with pytest.raises(ConfigError, match=r"18 questions are too few for rate=0\.05: give at least 19"):
        threshold([0.5] * 18)
    for rate in (0, 1, -1):
        with pytest.raises(ConfigError, match="is not allowed"):
            threshold(values, rate=rate)


@pytest.fixture
def memory():
    with HybridMemory(embedder=None) as opened:
        opened.add_many([f"Ana {fact} {town}" for town in TOWNS for fact in FACTS])
        yield opened


ANSWERABLE = [f"What did Ana {fact} {town}?" for town in TOWNS for fact in ("move to", "like in", "lose in")]
OFF_TOPIC = [f"Which compiler flag did Boris set for kernel {number}?" for number in range(20)]


def test_off_topic_questions_are_refused_and_answerable_ones_are_not(memory):
    cases = [Case("Ana in Oslo", {"m": 1.0}), Case("Can anybody answer this?")]  # the second names nothing relevant
    found = calibrate(memory, [*ANSWERABLE, *cases], off_topic=OFF_TOPIC)
    assert isinstance(found, Calibration)
    assert found.questions == len(ANSWERABLE) + 1
    assert found.refused <= 0.05
    assert found.off_topic >= 0.6
    assert f"min_confidence={found.threshold:.4f} refuses" in str(found)
    assert "of the off-topic ones" in str(found)
    assert memory.search(ANSWERABLE[0], min_confidence=found.threshold)
    assert memory.search(OFF_TOPIC[0], min_confidence=found.threshold) == []
    assert memory.search(OFF_TOPIC[0] + " Ana")  # off by default


def test_without_off_topic_questions(memory):
    found = calibrate(memory, ANSWERABLE)
    assert found.off_topic is None
    assert "off-topic" not in str(found)


def test_nearness_counts_where_there_are_vectors():
    def vectors(texts):
        return [[1.0, 0.0] if "harbour" in text else [0.0, 1.0] for text in texts]

    with HybridMemory(embedder=vectors) as opened:
        opened.add("the harbour closed")
        assert opened.search("harbour closed", min_confidence=0.99)
        # no word in common and at right angles: (0 + 0) / 2
        assert opened.search("mountain", min_confidence=0.01) == []


def test_an_empty_memory_is_never_confident():
    with HybridMemory(embedder=None) as opened:
        assert opened.search("anything", min_confidence=0.01) == []


def test_an_explanation_shows_the_confidence_and_honours_the_least_one():
    with HybridMemory(embedder=None) as memory:
        memory.add_many([f"Ana {fact} {town}." for town in TOWNS for fact in FACTS])
        told = memory.explain("Who moved to Oslo?")
        assert told.receipts
        assert told.confidence == 1.0  # the first hit has both words
        strange = memory.explain("Which zebra plays trombone?", min_confidence=0.5)
        assert strange.receipts == ()
        assert memory.search("Which zebra plays trombone?", min_confidence=0.5) == []
        assert strange.confidence == 0.0
