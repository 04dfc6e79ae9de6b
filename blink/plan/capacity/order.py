"""Whether more replicas are not worse: tried around the answer, since no router here lets it be proven.

The search takes it that a fleet meets the objectives with n + 1 replicas if it does with n. A router that looks at
what is under way may place the same requests so that a larger fleet does worse (as one more machine may lengthen a
schedule), and one more replica may be one more neighbour on a host. So the fleet that was found is run with one replica
less, which must miss, and with one more, which must hold. If it does not, numbers that the search passed over are no
longer out because of those that it tried: all from the proven bound on are then tried.
"""

from __future__ import annotations

from blink.plan.capacity.search import CapacitySearch, Trial


def confirm(search: CapacitySearch, trial: Trial) -> None:
    """Run the fleet of a candidate with one replica less and with one more; widen the search where that is amiss.

    A fleet that is larger than the busiest time needs, because it missed over the day, does not become smaller again.
    """
    assert trial.replicas is not None
    count = trial.replicas
    wanted = [(trial, count + 1)]
    if count > 1:
        wanted.append((trial, count - 1))
    search.run_more(wanted)
    fewer = count > 1 and not trial.raised and search.stands(trial, count - 1)
    if search.stands(trial, count + 1) and not fewer:
        return
    if not trial.raised:
        _try_fewer(search, trial)
    _try_more(search, trial, count + 2)
    trial.misses_above = [more for more in sorted(trial.runs) if more > trial.replicas and search.misses(trial, more)]


def _try_fewer(search: CapacitySearch, trial: Trial) -> None:
    """Every number below, from the proven bound on: the least that stands is the fleet."""
    assert trial.replicas is not None
    least = trial.bound.replicas if trial.bound else 1
    for count in range(least, trial.replicas):
        search.run_first(trial, count)
        if search.first_meets(trial, count):
            search.run_more([(trial, count)])
            if search.stands(trial, count):
                trial.replicas = count
                return


def _try_more(search: CapacitySearch, trial: Trial, count: int) -> None:
    """Numbers above, until one holds."""
    while count <= trial.candidate.replicas_max and not search.stands(trial, count - 1):
        search.run_more([(trial, count)])
        count += 1


def order_words(search: CapacitySearch, trial: Trial) -> str:
    """What was found, as the end of a sentence on the runs with fewer; a warning where the order is broken."""
    assert trial.replicas is not None
    more = trial.replicas + 1
    runs = trial.runs.get(more, {})
    met = sum(search.meets(figures) for figures in runs.values())
    said = f", with one more {met} of {len(runs)}"
    if not trial.misses_above:
        return said
    missed = " and ".join(filter(None, (", ".join(map(str, trial.misses_above[:-1])), str(trial.misses_above[-1]))))
    above = [count for count in sorted(trial.runs) if count > trial.replicas and search.stands(trial, count)]
    holds = f"; {above[-1]} hold again" if above else ""
    return (
        f"{said}. More replicas are not always better here: {missed} miss it in some run{holds}. "
        f"All numbers from the bound to {trial.replicas} were tried, none less does it; the margin is thin"
    )
