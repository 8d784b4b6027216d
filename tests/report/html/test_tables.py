"""The tables of a report: each client, each measure."""

from __future__ import annotations

from dataclasses import replace

from paired_comparison import compare_gains, with_alone

from udjfl.methods import UDJ
from udjfl.metrics import METRICS
from udjfl.report.html.figure import number
from udjfl.report.html.material import ClientFacts, Material
from udjfl.report.html.tables import Table, client_table, measure_table
from udjfl.simulation.comparison import Comparison

GAINS = {UDJ(theory="rawls"): [-6.0, -6.0, -6.0, -6.0, 0.0]}


def make_material(comparison: Comparison, **facts: ClientFacts) -> Material:
    clients = {name.replace("_", "-"): fact for name, fact in facts.items()}
    return Material("by hand", comparison.seeds, comparison.rows, comparison, "", clients=clients)


def remarks_on(table: Table, client: str) -> str:
    [row] = [row for row in table.rows if row[0].text == client]
    return row[-1].text


def test_changes_stand_below_scores() -> None:
    table = client_table(make_material(compare_gains(GAINS)))
    assert table.headings[-4:] == ["Rawls", "Train examples", "Test examples", "Remarks"]
    score = table.rows[0][-4]
    assert score.style == "loss"
    assert score.below[0].startswith("-6")


def test_clients_that_are_levelled_down_are_named() -> None:
    comparison = compare_gains(GAINS, margin=10.0)
    assert comparison.verdicts[1][0].kind == "levelled down"
    table = client_table(make_material(comparison))
    assert "levelled down by Rawls" in remarks_on(table, "client-1")
    assert "levelled down" not in remarks_on(table, "client-5")


def test_small_test_parts_and_flags_are_remarked() -> None:
    comparison = compare_gains(GAINS, test_sizes=(20, 5000, 5000, 5000, 5000))
    table = client_table(make_material(comparison, client_2=ClientFacts(9, 5000, ("one class",))))
    # 20 examples, and FedAvg's accuracies there of 94.2 on the mean over seeds.
    assert remarks_on(table, "client-1").startswith("test part too small to tell")
    assert remarks_on(table, "client-2").startswith("one class")
    assert "too small" not in remarks_on(table, "client-5")


def test_who_is_better_off_alone_is_said() -> None:
    comparison = compare_gains(GAINS)
    fedavg = comparison.rows[0].client_scores["client-4"].mean
    assert fedavg is not None
    alone = {**dict.fromkeys(comparison.rows[0].client_scores, 99.0), "client-4": fedavg}
    table = client_table(make_material(with_alone(comparison, alone)))
    assert "better off alone" in remarks_on(table, "client-5")
    # It has as much under FedAvg, and 6 points less under Rawls.
    assert "better off alone than under Rawls" in remarks_on(table, "client-4")
    assert "Alone" in table.headings


def test_every_measure_is_tabulated_and_the_theorys_own_stands_out() -> None:
    material = make_material(compare_gains(GAINS))
    table, more = measure_table(material), measure_table(material, on_request=True)
    # Accuracies alone and groups are not known here.
    known = [m for m in METRICS.values() if not (m.needs_alone or m.needs_groups)]
    assert len(table.headings) + len(more.headings) == len(known) + 2
    psi = table.headings.index("Psi ↑")
    assert "own" in table.rows[1][psi].style
    assert table.rows[1][psi].below[-1].endswith("*")
    assert all("own" not in cell.style for cell in table.rows[1][psi + 1 :])


def test_without_fedavg_there_is_no_psi() -> None:
    comparison = compare_gains(GAINS)
    material = replace(make_material(comparison), comparison=None)
    assert not any("Psi" in heading for heading in measure_table(material).headings)


def test_sums_in_another_order_are_rounded_alike() -> None:
    assert number(-3.25, sign="+") == number(-3.2500000000000004, sign="+") == "-3.2"
    assert number(-0.04) == "0.0"
    assert number(1e6 + 0.25) == "1000000.2"
