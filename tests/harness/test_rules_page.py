"""The page of results shows every rule with its sabotage, and which attacks nothing catches."""

from harness.results.checks import RULES
from tests.rules import ATTACKS, MATRIX, OF_RUN, PAGE, ROOT, make_page, replace_part


def test_every_rule_has_a_line_in_the_matrix():
    assert set(MATRIX) == RULES | OF_RUN
    assert {rule for attack in ATTACKS for rule in attack.rules} <= set(MATRIX)


def test_a_line_of_another_test_names_its_file():
    files = {one.fault for one in MATRIX.values() if one.fault.endswith(".py")}
    assert all((ROOT / "tests" / name).is_file() for name in files)


def test_what_nothing_catches_has_a_reason():
    assert all(attack.note for attack in ATTACKS if not attack.rules)


def test_the_page_is_as_the_matrix_makes_it():
    page = PAGE.read_text()
    assert page == replace_part(page, make_page()), "write it again: python tests/rules.py"
