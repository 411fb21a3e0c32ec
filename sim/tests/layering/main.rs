//! The architecture and the style, as far as a test can hold them: the import table, where `unsafe` and the reserved
//! libraries may stand, synchronous deciders, lengths, names. Each rule is shown to fail on a small fixture beside it.

mod documents;
mod manifest;
mod rules;
mod source;
mod style;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use manifest::Manifest;
use source::Source;
use style::Exceptions;

const CRATES: &[&str] = &["protocol", "runtime", "cluster", "storage", "net", "shard", "broker", "client", "bench", "sim"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("sim lies in the repository").to_owned()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("a folder of the repository can be read").path()) {
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let top = repository();
    let mut paths = Vec::new();
    for folder in CRATES.iter().flat_map(|name| ["src", "tests", "benches", "examples"].map(|part| top.join(name).join(part))) {
        collect(&folder, &mut paths);
    }
    paths.sort();
    assert!(paths.len() >= CRATES.len(), "the sources were not found below {}", top.display());
    let name = |path: &Path| path.strip_prefix(&top).expect("below the repository").to_string_lossy().into_owned();
    paths.iter().map(|path| Source::new(&name(path), &std::fs::read_to_string(path).expect("a source is UTF-8"))).collect()
}

fn manifests() -> BTreeMap<String, Manifest> {
    let read = |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let workspace = read(repository().join("Cargo.toml"));
    let members = workspace.lines().find(|line| line.starts_with("members")).expect("the workspace names its members");
    assert_eq!(members.matches('"').count(), 2 * CRATES.len(), "a member of the workspace isn't known to the layering test");
    CRATES.iter().map(|name| ((*name).to_owned(), Manifest::parse(&read(repository().join(name).join("Cargo.toml"))))).collect()
}

fn none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

#[test]
fn crates_import_what_the_table_allows() {
    none("import table", &rules::imports(&manifests()));
}

#[test]
fn reserved_words_stay_in_their_place() {
    none("reserved words", &rules::reserved_words(&sources()));
}

#[test]
fn crate_roots_forbid_unsafe_code() {
    none("crate roots", &rules::crate_roots(&sources()));
}

#[test]
fn deciders_are_synchronous() {
    none("deciders", &rules::deciders_are_synchronous(&sources()));
}

#[test]
fn threads_meet_in_few_places() {
    none("meeting places", &rules::threads_meet_in_few_places(&sources()));
}

#[test]
fn core_code_is_single_threaded() {
    none("one thread", &rules::core_code_is_single_threaded(&sources()));
}

#[test]
fn the_ring_stays_behind_the_traits() {
    none("traits", &rules::ring_stays_behind_the_traits(&sources()));
}

#[test]
fn nothing_is_half_done() {
    none("half done", &rules::nothing_is_half_done(&sources()));
}

#[test]
fn allowed_lints_have_reasons() {
    none("allowed lints", &rules::allowed_lints_have_reasons(&sources()));
}

#[test]
fn files_functions_and_limits_keep_to_their_bounds() {
    let path = repository().join("sim/tests/layering/exceptions.txt");
    let exceptions = Exceptions::parse(&std::fs::read_to_string(path).expect("the list of exceptions"));
    none("bounds", &style::over_bounds(&sources(), &exceptions));
}

#[test]
fn names_keep_to_the_glossary() {
    none("names", &style::names(&sources()));
}

#[test]
fn files_open_with_what_they_are() {
    none("headers", &style::headers(&sources()));
}

fn document(name: &str) -> String {
    let path = repository().join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_trap_has_a_row_with_its_tests() {
    none("TRAPS", &documents::traps(&document("TRAPS.md"), &sources()));
}

#[test]
fn tests_that_documents_name_exist() {
    let sources = sources();
    for name in ["STATUS.md", "TRAPS.md", "NON_OBVIOUS.md", "ARCHITECTURE.md"] {
        none(name, &documents::named_tests_exist(name, &document(name), &sources));
    }
}

#[test]
fn every_requirement_has_a_status() {
    none("STATUS", &documents::every_requirement_has_a_status(&document("REQUIREMENTS.md"), &document("STATUS.md")));
}
