"""Tests the tables of the decoding rows: own random streams, edits as flat arrays, growth."""

import numpy as np
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.kernels.sampling.draw import Drawn
from mlx_bulk.kernels.sampling.grammar_mask import Allowed
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.engine.slots import DRAWS, Active, Slots

from ..support.tiny_runs import request

NO_EOS = np.zeros(0, np.int32)


def active(sampling: Sampling, seed: int = 0, prompt: tuple[int, ...] = (3, 1, 3)) -> Active:
    asked = request(0, list(prompt), sampling, [seed])
    return Active(asked, asked.work.samples[0], None, np.random.Philox(key=seed), None, None, np.unique(asked.prompt.ids))


def write(slots: Slots, order: list[int], ids: list[int]) -> None:
    floats = np.array(ids, np.float32)
    scores = Scores(-floats, ranks=np.array(ids, np.int32), entropies=floats)
    slots.sent[order] += 1
    slots.write(np.array(order), Drawn(np.array(ids, np.int32), floats * np.float32(0.5)), scores)


def test_token_t_uses_number_t_of_its_rows_stream():
    slots, seeds, steps = Slots(3, 0, True), {0: 11, 2: 12}, 2 * DRAWS + 5
    for slot, seed in seeds.items():
        slots.enter(slot, active(Sampling(max_tokens=500), seed))
    seen: dict[int, list[float]] = {0: [], 2: []}
    for step in range(steps):
        order = [0] if step < 10 else [2, 0]  # the second row starts ten steps later
        uniforms = slots.parameters(np.array(order), NO_EOS).uniforms
        for slot, u in zip(order, uniforms, strict=True):
            seen[slot].append(float(u))
        write(slots, order, [step] * len(order))
    for slot, seed in seeds.items():
        raw = np.random.Philox(key=seed).random_raw(steps)
        assert seen[slot] == ((raw >> np.uint64(40)) / 2.0**24).tolist()[: len(seen[slot])]
    assert max(seen[0]) < 1
    assert len(set(seen[0])) > 100


def test_xtc_takes_the_lower_bits_of_the_same_numbers():
    """So a row draws from the same numbers with XTC as without it."""
    slots, plain, steps = Slots(2, 0, True), Slots(2, 0, True), DRAWS + 5
    slots.enter(0, active(Sampling(max_tokens=500, xtc_probability=0.5, xtc_threshold=0.2), seed=11))
    slots.enter(1, active(Sampling(max_tokens=500, typical_p=0.9), seed=12))
    for slot in (0, 1):
        plain.enter(slot, active(Sampling(max_tokens=500), seed=11 + slot))
    raw, order = np.random.Philox(key=11).random_raw(steps), np.array([1, 0])
    for step in range(steps):
        p, without = slots.parameters(order, NO_EOS), plain.parameters(order, NO_EOS)
        assert p.xtc is not None
        assert p.typical_p is not None
        assert p.xtc.uniforms[1] == np.float32((raw[step] % np.uint64(2**24)) / 2.0**24)
        assert p.xtc.probability.tolist() == [0.0, 0.5]
        assert p.xtc.threshold[1] == np.float32(0.2)
        assert p.typical_p.tolist() == [np.float32(0.9), 1.0]
        np.testing.assert_array_equal(p.uniforms, without.uniforms)
        assert without.xtc is None
        assert without.typical_p is None
        write(slots, [1, 0], [step, step])
        write(plain, [1, 0], [step, step])


def test_tables_grow_and_a_reused_slot_starts_afresh():
    slots = Slots(2, 0, True)
    slots.enter(0, active(Sampling()))
    for token in range(300):
        write(slots, [0], [token])
    drawn, scores = slots.generated(0)
    ids, sampled = drawn.ids, drawn.sampled
    assert ids.tolist() == list(range(300))
    assert scores.logprobs.tolist() == [-float(i) for i in range(300)]
    assert scores.ranks is not None
    assert scores.ranks.tolist() == list(range(300))
    assert sampled.tolist() == [i / 2 for i in range(300)]
    slots.leave(0)
    assert slots.free == [0, 1]
    slots.enter(0, active(Sampling(), prompt=(8, 9)))
    assert (slots.sent[0], slots.count[0], slots.limit[0]) == (0, 0, 256)
    assert slots.generated(0)[0].ids.tolist() == []
    assert ids.tolist() == list(range(300))  # what was handed out is the caller's own


def test_plain_rows_need_no_edits():
    slots = Slots(2, 0, True)
    slots.enter(0, active(Sampling(temperature=0.5, top_p=0.9)))
    assert slots.parameters(np.array([0]), np.array([5], np.int32)).edits is None


def test_greedy_rows_without_edits_are_told_once_a_batch():
    """Until a slot gets another row, or a grammar masks one."""
    slots, order, eos = Slots(2, 0, True), np.array([0, 1]), np.array([5], np.int32)
    for slot in (0, 1):
        slots.enter(slot, active(Sampling(temperature=0)))
    first = slots.parameters(order, eos)
    assert slots.parameters(order, eos) is first
    masked = slots.parameters(order, eos, Allowed(np.array([0], np.int32), np.zeros((1, 1), np.int32)))
    assert masked.allowed is not None
    assert slots.parameters(order, eos).allowed is None
    slots.leave(1)
    slots.enter(1, active(Sampling(temperature=0, min_tokens=1)))
    edits = slots.parameters(order, eos).edits
    assert edits is not None
    assert edits.rows.tolist() == [1]
    slots.sent[order] += 1
    assert slots.parameters(order, eos).edits is None
    slots.leave(1)
    slots.enter(1, active(Sampling(temperature=0.5)))
    assert slots.parameters(order, eos).temperature.tolist() == [0, 0.5]


def test_edits_name_the_batchs_rows_not_the_slots():
    slots, eos = Slots(4, 0, True), np.array([5], np.int32)
    slots.enter(3, active(Sampling(logit_bias={7: 1.5}, min_tokens=2, stop_token_ids=(6,))))
    slots.enter(1, active(Sampling(repetition_penalty=1.2)))
    slots.enter(0, active(Sampling(frequency_penalty=0.5)))
    order = [0, 3, 1]
    write(slots, order, [8, 9, 2])
    write(slots, order, [8, 4, 2])
    edits = slots.parameters(np.array(order), eos).edits
    assert edits is not None
    assert list(zip(edits.rows, edits.ids, edits.add, strict=True)) == [(1, 7, 1.5)]  # two tokens are there: the mask is over
    assert sorted(zip(edits.seen_rows.tolist(), edits.seen_ids.tolist(), strict=True)) == [(2, 1), (2, 2), (2, 2), (2, 3)]
    said = list(zip(edits.said_rows.tolist(), edits.said_ids.tolist(), strict=True))
    assert [pair for pair in said if pair[0] == 0] == [(0, 8), (0, 8)]


def test_the_mask_of_min_tokens_covers_eos_and_stop_ids():
    slots, eos = Slots(2, 0, True), np.array([5, 6], np.int32)
    slots.enter(0, active(Sampling(min_tokens=1, stop_token_ids=(6, 2))))
    slots.enter(1, active(Sampling(min_tokens=1, stop_token_ids=(2,), ignore_eos=True)))
    edits = slots.parameters(np.array([0, 1]), eos).edits
    assert edits is not None
    assert set(zip(edits.rows.tolist(), edits.ids.tolist(), strict=True)) == {(0, 2), (0, 5), (0, 6), (1, 2)}
    assert np.isneginf(edits.add).all()


def test_tempered_logprobs_and_kept_ids_are_a_rows_own():
    slots = Slots(2, 0, True, tempered=True)
    slots.enter(1, active(Sampling(top_k=2)))
    slots.enter(0, active(Sampling()))
    for token in (4, 7):
        ids, floats = np.array([token, token + 1], np.int32), np.array([-1.0 * token, -2.0 * token], np.float32)
        kept = [np.array([token, 9], np.int32), None]
        slots.write(np.array([1, 0]), Drawn(ids, floats, floats - 1, kept), Scores(floats, ranks=ids, entropies=floats))
    drawn, _ = slots.generated(1)
    assert drawn.tempered is not None
    assert drawn.kept is not None
    kept_ids = [[] if ids is None else ids.tolist() for ids in drawn.kept]
    assert (drawn.tempered.tolist(), kept_ids) == ([-5.0, -8.0], [[4, 9], [7, 9]])
    plain, _ = slots.generated(0)
    assert plain.tempered is not None
    assert (plain.tempered.tolist(), plain.kept) == ([-9.0, -15.0], None)
    slots.leave(1)
    slots.enter(1, active(Sampling(top_k=2)))
    assert slots.generated(1)[0].kept is None
