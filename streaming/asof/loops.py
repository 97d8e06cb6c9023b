"""Loops over the events and rows of one key table, in merge order; compiled by numba.

E events, R rows, S slots of keys, V accumulators of each, L last impressions of each with C items.

A row reads what its key held after the events before `until[row]`, then later events follow. An event or a row of key 0
has none. A key that was last shown more than `expire` ms ago is a new one. A loop returns where it stopped, as (event,
row, used slots): at the end, or at the event that needs a slot where all are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

SHOWN = 0
"""Kind of the event that an impression is; label events of task t are 1 + t."""

COUNT, AGED, WEIGHTED = 0, 1, 2
"""An event adds 1, the share that is left of its impression's 1, or its weight."""

NEVER = -(2**62)


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # nowhere to keep what was compiled
        return numba.njit(nogil=True)(function)


@_compiled
def slot_of(index: np.ndarray, hashes: np.ndarray, key: np.uint64) -> np.int64:
    """The slot of a key, or -1 - its place in the index."""
    mask = len(index) - 1
    at = np.int64(key & np.uint64(mask))
    while index[at] >= 0:
        if hashes[index[at]] == key:
            return np.int64(index[at])
        at = (at + 1) & mask
    return np.int64(-1 - at)


@_compiled
def fill_index(index: np.ndarray, hashes: np.ndarray, first: int, stop: int) -> None:
    """Enter the keys of slots [first, stop), none of which the index has."""
    for slot in range(first, stop):
        index[-1 - slot_of(index, hashes, hashes[slot])] = slot


@_compiled
def empty_index(index: np.ndarray, hashes: np.ndarray, first: int, stop: int) -> None:
    """Take the keys of slots [first, stop) out again, which were entered last and in this order."""
    mask = len(index) - 1
    for slot in range(stop - 1, first - 1, -1):
        at = np.int64(hashes[slot] & np.uint64(mask))
        while index[at] != slot:
            at = (at + 1) & mask
        index[at] = -1


@_compiled
def slots_of(index: np.ndarray, hashes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The slots of those of the keys that have one."""
    slots, count = np.empty(len(keys), np.int64), 0
    for key in keys:
        slot = slot_of(index, hashes, key) if key != 0 else -1
        if slot >= 0:
            slots[count] = slot
            count += 1
    return slots[:count]


@_compiled
def enter(index, hashes, touched, changed, used, key, kind, time, expire):
    """The slot that an event of a key goes to, whether the key is a new one, and the used slots: (slot, new, used).

    An impression gives its key a slot, -2 where all are used; a label of a key that is not remembered has none, -1.
    """
    slot = slot_of(index, hashes, key)
    if slot < 0:
        if kind != SHOWN:
            return np.int64(-1), False, used
        if used == len(hashes):
            return np.int64(-2), False, used
        index[-1 - slot], hashes[used], touched[used] = used, key, NEVER
        slot, used = np.int64(used), used + 1
    is_new = touched[slot] < time - expire
    if kind == SHOWN:
        touched[slot] = time
    elif is_new:
        return np.int64(-1), False, used
    changed[slot] = 1
    return slot, is_new, used


@_compiled
def present_slot(index, hashes, touched, key, now, expire):
    """The slot of a row's key, -1 where it has none or was not shown for `expire` ms."""
    slot = slot_of(index, hashes, key) if key != 0 else np.int64(-1)
    return slot if slot >= 0 and touched[slot] >= now - expire else np.int64(-1)


@_compiled
def accumulate(
    index, hashes, touched, used, changed, values, times, kinds, halves, modes,  # the table
    event_time, event_kind, event_key, event_shown, event_weight, row_key, row_time, until,
    expire, event, row, out_value, out_time,
):  # fmt: skip
    """Sums (S, V) of events, halved every `halves` ms (0: never), and the time of the last one of each.

    kinds, modes, halves (V,); out_value (R, V) as of `row_time`, out_time (R, V).
    """
    sums = len(kinds)
    while True:
        stop = until[row] if row < len(row_key) else until[len(row_key)]
        while event < stop:
            key, kind, time = event_key[event], event_kind[event], event_time[event]
            if key != 0:
                slot, is_new, used = enter(index, hashes, touched, changed, used, key, kind, time, expire)
                if slot == -2:
                    return event, row, used
                if slot >= 0:
                    for v in range(sums):
                        if is_new:
                            values[slot, v], times[slot, v] = 0.0, NEVER
                        if kinds[v] != kind:
                            continue
                        added, value = 1.0, values[slot, v]
                        if modes[v] == WEIGHTED:
                            added = event_weight[event]
                        if halves[v] > 0:
                            if modes[v] == AGED:
                                added = 0.5 ** ((time - event_shown[event]) / halves[v])
                            if value != 0.0:
                                value *= 0.5 ** ((time - times[slot, v]) / halves[v])
                        values[slot, v], times[slot, v] = value + added, time
            event += 1
        if row == len(row_key):
            return event, row, used
        key, now = row_key[row], row_time[row]
        slot = present_slot(index, hashes, touched, key, now, expire)
        for v in range(sums):
            out_value[row, v], out_time[row, v] = 0.0, NEVER
            if slot >= 0 and times[slot, v] != NEVER:
                value = values[slot, v]
                if halves[v] > 0:
                    value *= 0.5 ** ((now - times[slot, v]) / halves[v])
                out_value[row, v], out_time[row, v] = value, times[slot, v]
        row += 1


@_compiled
def remember(
    index, hashes, touched, used, changed, count, numbers, times, items, labels,  # the table
    entering, event_time, event_kind, event_key, event_number, event_items, row_key, row_time, until,
    expire, event, row, out_count, out_time, out_items, out_labels,
):  # fmt: skip
    """The last impressions (S, L) of each key, in a ring that an event of kind `entering` puts them into; a label sets
    bit `kind - 1` of its impression.

    numbers, times, labels (S, L), items (S, L, C), count (S,) of all; out_… (R, L), newest last, out_count (R,).
    """
    most = numbers.shape[1]
    while True:
        stop = until[row] if row < len(row_key) else until[len(row_key)]
        while event < stop:
            key, kind, time = event_key[event], event_kind[event], event_time[event]
            if key != 0:
                slot, is_new, used = enter(index, hashes, touched, changed, used, key, kind, time, expire)
                if slot == -2:
                    return event, row, used
                if slot >= 0 and is_new:
                    count[slot] = 0
                if slot >= 0 and kind == entering:
                    at = count[slot] % most
                    numbers[slot, at], times[slot, at], labels[slot, at] = event_number[event], time, 0
                    for c in range(items.shape[2]):
                        items[slot, at, c] = event_items[event, c]
                    count[slot] += 1
                if slot >= 0 and kind != SHOWN:
                    for at in range(min(count[slot], most)):
                        if numbers[slot, at] == event_number[event]:
                            labels[slot, at] |= 1 << (kind - 1)
            event += 1
        if row == len(row_key):
            return event, row, used
        key, now = row_key[row], row_time[row]
        slot = present_slot(index, hashes, touched, key, now, expire)
        out_count[row] = 0
        if slot >= 0:
            out_count[row] = min(count[slot], most)
            for place in range(out_count[row]):
                at = (count[slot] - out_count[row] + place) % most
                out_time[row, place], out_labels[row, place] = times[slot, at], labels[slot, at]
                for c in range(items.shape[2]):
                    out_items[row, place, c] = items[slot, at, c]
        row += 1
