//! Documents say what is: tests that they name exist, and every trap's test stands in the list of traps.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// The trap numbers that a test's name begins with.
fn trap_numbers(name: &str) -> Vec<u32> {
    let mut rest = name;
    let mut numbers = Vec::new();
    while let Some((head, tail)) = rest.split_once('_') {
        let Some(number) = head.strip_prefix('t').filter(|number| number.len() == 2).and_then(|number| number.parse().ok())
        else {
            break;
        };
        numbers.push(number);
        rest = tail;
    }
    numbers
}

/// Names in backticks that can only be a function's: lower case words joined by underscores.
fn named_functions(text: &str) -> Vec<&str> {
    let inside = text.split('`').skip(1).step_by(2);
    let is_name = |name: &&str| {
        name.matches('_').count() >= 2 && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    inside.filter(is_name).collect()
}

fn functions(sources: &[Source]) -> BTreeSet<String> {
    sources.iter().flat_map(Source::functions).map(|function| function.name).collect()
}

/// The list of traps has a row for each of T1 to T99, and its tests are those of the sources.
pub fn traps(traps: &str, sources: &[Source]) -> Vec<String> {
    let mut expected: BTreeMap<u32, BTreeSet<String>> = (1..=99).map(|number| (number, BTreeSet::new())).collect();
    for name in functions(sources) {
        for number in trap_numbers(&name) {
            expected.entry(number).or_default().insert(name.clone());
        }
    }
    let mut listed: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    let mut broken = Vec::new();
    for line in traps.lines() {
        let Some((number, cell)) = line.strip_prefix("| T").and_then(|row| row.split_once(" | ")) else { continue };
        let Ok(number) = number.parse() else { continue };
        let names: BTreeSet<String> = named_functions(cell).into_iter().map(str::to_owned).collect();
        if names.is_empty() && !cell.contains("open: ") {
            broken.push(format!("T{number}: neither a test nor what it is open for"));
        }
        if listed.insert(number, names).is_some() {
            broken.push(format!("T{number} stands twice"));
        }
    }
    for (number, names) in &expected {
        match listed.get(number) {
            None => broken.push(format!("T{number} has no row")),
            Some(found) if found != names => {
                let missing: Vec<&String> = names.difference(found).collect();
                let gone: Vec<&String> = found.difference(names).collect();
                broken.push(format!(
                    "T{number}: not listed {missing:?}, listed and not there {gone:?} (make fix writes the column)"
                ));
            }
            Some(_) => {}
        }
    }
    broken
}

/// Every function that a document names in backticks exists.
pub fn named_tests_exist(document: &str, text: &str, sources: &[Source]) -> Vec<String> {
    let functions = functions(sources);
    named_functions(text)
        .into_iter()
        .filter(|name| !functions.contains(*name))
        .map(|name| format!("{document} names `{name}`, which isn't there"))
        .collect()
}

/// STATUS has a line for each requirement of REQUIREMENTS, and no other.
pub fn every_requirement_has_a_status(requirements: &str, status: &str) -> Vec<String> {
    let rows = |text: &str| -> BTreeSet<String> {
        let first = |line: &str| line.strip_prefix("| ").and_then(|row| row.split(' ').next()).map(str::to_owned);
        let is_row = |name: &String| {
            let (letter, number) = name.split_at_checked(1).unwrap_or(("", ""));
            "ABCDEFG".contains(letter) && !letter.is_empty() && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
        };
        text.lines().filter_map(first).filter(is_row).collect()
    };
    let (required, stated) = (rows(requirements), rows(status));
    let missing = required.difference(&stated).map(|row| format!("{row} has no line in STATUS"));
    missing.chain(stated.difference(&required).map(|row| format!("{row} stands in STATUS and is no requirement"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Vec<Source> {
        vec![Source::new("net/tests/a.rs", "#[test]\nfn t01_one() {}\n#[test]\nfn t02_t03_both_of_them() {}\n")]
    }

    fn table(first: &str, second: &str) -> String {
        let rest: String = (4..=99).map(|number| format!("| T{number} | x | open: later |\n")).collect();
        format!("| T1 | x | {first} |\n| T2 | x | {second} |\n| T3 | x | `t02_t03_both_of_them` |\n{rest}")
    }

    #[test]
    fn the_list_of_traps_is_held_to_the_tests() {
        // One underscore only: too short to be taken for a name of a function.
        let sources = vec![Source::new("net/tests/a.rs", "fn t01_one_of_them() {}\nfn t02_t03_both_of_them() {}\n")];
        assert_eq!(traps(&table("`t01_one_of_them`", "`t02_t03_both_of_them`"), &sources), Vec::<String>::new());
        assert_eq!(traps(&table("open: later", "`t02_t03_both_of_them`"), &sources).len(), 1);
        assert_eq!(traps(&table("`t01_one_of_them`, `t01_gone_by_now`", "`t02_t03_both_of_them`"), &sources).len(), 1);
        assert_eq!(traps(&table("", "`t02_t03_both_of_them`"), &sources).len(), 2);
        assert_eq!(traps("", &[]).len(), 99);
    }

    #[test]
    fn a_named_test_that_is_gone_is_found() {
        assert_eq!(named_tests_exist("X", "see `t02_t03_both_of_them`, `make test`, `bench`", &sources()), Vec::<String>::new());
        assert_eq!(named_tests_exist("X", "see `t02_t03_of_old`", &sources()), ["X names `t02_t03_of_old`, which isn't there"]);
    }

    #[test]
    fn a_requirement_without_a_status_is_found() {
        assert_eq!(every_requirement_has_a_status("| A1 | x |\n| B2 | y |", "| A1 | done |"), ["B2 has no line in STATUS"]);
        assert_eq!(
            every_requirement_has_a_status("| A1 | x |", "| A1 | x |\n| G9 | y |"),
            ["G9 stands in STATUS and is no requirement"]
        );
    }
}
