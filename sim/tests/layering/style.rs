//! Rules about how code reads: lengths, headers, names, and where limits stand.
//!
//! `exceptions.txt` beside this file lists what was over a bound when it was written down, with its size. An entry may
//! shrink; it may not grow, and one that is no longer needed has to go.

use std::collections::BTreeMap;

use super::source::Source;

/// Lines of a file without its tests, at most.
pub const FILE_LINES_MAX: usize = 600;
/// Lines of a file with its tests, at most.
pub const FILE_LINES_WITH_TESTS_MAX: usize = 800;
/// Lines of a function, at most: "about 70".
pub const FUNCTION_LINES_MAX: usize = 75;
/// Lines of a test function, at most.
pub const TEST_FUNCTION_LINES_MAX: usize = 120;
/// Lines of a file's header, at most.
pub const HEADER_LINES_MAX: usize = 20;
/// Lines of a crate's documentation, at most.
pub const CRATE_HEADER_LINES_MAX: usize = 40;

/// Parts of names that say too little, or say it in another product's words, with what to write.
const UNWANTED_PARTS: &[(&str, &str)] = &[
    ("lso", "last_stable"),
    ("hwm", "high_watermark"),
    ("leo", "log_end"),
    ("msg", "record, reply or request"),
    ("mgr", "the thing itself"),
    ("manager", "the thing itself"),
    ("util", "a name for what it does"),
    ("utils", "a name for what it does"),
    ("helper", "a name for what it does"),
    ("helpers", "a name for what it does"),
    ("misc", "a name for what it does"),
    ("ctx", "context"),
    ("cfg", "config"),
    ("idx", "index"),
    ("cnt", "count"),
    ("req", "request"),
    ("resp", "reply or response"),
    ("evt", "record, or what happened"),
    ("tmp", "temporary"),
    ("addr", "address"),
];

/// Names of types that the glossary has another word for.
const UNWANTED_TYPES: &[(&str, &str)] =
    &[("Message", "Record"), ("Event", "Record"), ("Msg", "Record"), ("Term", "LeaderEpoch"), ("Broker", "Host")];

/// What `exceptions.txt` allows: a name ("file PATH", "fn PATH::NAME", "limit PATH::NAME") to a size.
#[derive(Default)]
pub struct Exceptions(BTreeMap<String, usize>);

impl Exceptions {
    pub fn parse(text: &str) -> Exceptions {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        Exceptions(
            lines
                .map(|line| {
                    let (name, size) = line.rsplit_once(' ').expect("an exception is a name and a size");
                    (name.to_owned(), size.parse().expect("the size of an exception is a number"))
                })
                .collect(),
        )
    }
}

/// What is over its bound, as (name, size, bound, where): the raw material of [`over_bounds`].
pub fn sizes_over_bounds(sources: &[Source]) -> Vec<(String, usize, usize, String)> {
    let mut over = Vec::new();
    for source in sources {
        let (lines, bare) = (source.lines(), source.lines_without_tests());
        if bare > FILE_LINES_MAX {
            over.push((
                format!("file {}", source.path),
                bare,
                FILE_LINES_MAX,
                format!("{}: {bare} lines without tests", source.path),
            ));
        } else if lines > FILE_LINES_WITH_TESTS_MAX {
            over.push((
                format!("file {}", source.path),
                lines,
                FILE_LINES_WITH_TESTS_MAX,
                format!("{}: {lines} lines", source.path),
            ));
        }
        let starts: Vec<usize> = std::iter::once(0).chain(source.code.match_indices('\n').map(|(at, _)| at + 1)).collect();
        for function in source.functions() {
            let bound = if source.in_tests(starts[function.line - 1]) { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
            if function.lines > bound {
                let place = format!("{}:{}: fn {} has {} lines", source.path, function.line, function.name, function.lines);
                over.push((format!("fn {}::{}", source.path, function.name), function.lines, bound, place));
            }
        }
        for name in limits_outside(source) {
            over.push((
                format!("limit {}::{name}", source.path),
                1,
                0,
                format!("{}: {name} belongs in protocol/src/limits.rs", source.path),
            ));
        }
    }
    over
}

/// Files and functions keep to their lengths and limits to their file, but for the exceptions; no exception is stale.
pub fn over_bounds(sources: &[Source], exceptions: &Exceptions) -> Vec<String> {
    let mut unused = exceptions.0.clone();
    let mut broken = Vec::new();
    for (name, size, bound, place) in sizes_over_bounds(sources) {
        match unused.remove(&name) {
            Some(allowed) if size <= allowed => {}
            Some(allowed) => broken.push(format!("{place}: grew past its exception of {allowed}")),
            None => broken.push(format!("{place}: the bound is {bound}")),
        }
    }
    broken.extend(unused.into_keys().map(|name| format!("exceptions.txt: `{name}` is no longer needed: remove the line")));
    broken
}

/// Public constants of product code that look like a limit, outside the file of limits. What tunes one file is its own matter.
fn limits_outside(source: &Source) -> Vec<String> {
    let product = ["protocol/", "runtime/", "cluster/", "storage/", "net/", "shard/", "broker/", "client/"];
    if source.path == "protocol/src/limits.rs" || !product.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let is_limit = |name: &str| ["_MAX", "_MIN", "_LIMIT", "_CEILING", "_TIMEOUT_MS"].iter().any(|end| name.ends_with(end));
    declared_names(source)
        .filter(|(position, kind, name)| {
            *kind == "const" && is_public(source, *position, kind) && is_limit(name) && !source.in_tests(*position)
        })
        .map(|(_, _, name)| name.to_owned())
        .collect()
}

/// Whether `pub` stands before the keyword of the name at `position`.
fn is_public(source: &Source, position: usize, keyword: &str) -> bool {
    source.code[..position].trim_end().trim_end_matches(keyword).trim_end().ends_with("pub")
}

/// Names that the file declares: (position, keyword, name).
fn declared_names(source: &Source) -> impl Iterator<Item = (usize, &str, &str)> {
    let keywords = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
    let words: Vec<(usize, &str)> = source.words().collect();
    let pairs: Vec<(usize, &str, &str)> = words
        .windows(2)
        .filter(|pair| keywords.contains(&pair[0].1) && !keywords.contains(&pair[1].1))
        .map(|pair| (pair[1].0, pair[0].1, pair[1].1))
        .collect();
    pairs.into_iter()
}

/// `max_bytesPerCore` as `max`, `bytes`, `per`, `core`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut previous_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && previous_lower) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("never empty").extend(c.to_lowercase());
        }
        previous_lower = c.is_lowercase() || c.is_ascii_digit();
    }
    parts
}

/// No `get_`, no abbreviations that the style names, no words that the glossary replaces; trap tests carry a trap's number.
pub fn names(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        for (position, kind, name) in declared_names(source) {
            let place = format!("{}:{}", source.path, source.line_of(position));
            if kind == "fn" && (name == "get" || name.starts_with("get_")) {
                broken.push(format!("{place}: fn {name}: name it after what it gives back"));
            }
            for part in parts(name) {
                if let Some((_, better)) = UNWANTED_PARTS.iter().find(|(unwanted, _)| *unwanted == part) {
                    broken.push(format!("{place}: `{part}` in {name}: write {better}"));
                }
            }
            let is_type = ["struct", "enum", "trait", "type"].contains(&kind) && is_public(source, position, kind);
            if is_type && UNWANTED_TYPES.iter().any(|(unwanted, _)| *unwanted == name) {
                let better = UNWANTED_TYPES.iter().find(|(unwanted, _)| *unwanted == name).map_or("", |(_, better)| better);
                broken.push(format!("{place}: the glossary's word for {name} is {better}"));
            }
            let number = name
                .strip_prefix('t')
                .and_then(|rest| rest.split_once('_'))
                .map(|(number, _)| number)
                .filter(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()));
            if kind == "fn" && number.is_some_and(|number| number.len() != 2 || number == "00") {
                broken.push(format!("{place}: fn {name}: a trap's test is named t01_ to t99_"));
            }
        }
    }
    broken
}

/// Product files open with what they are, briefly.
pub fn headers(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| source.path.contains("/src/") && !source.is_test_file() && !source.is_empty()) {
        let lines = source.text.lines().filter(|line| !line.starts_with("#!["));
        let header = lines.skip_while(|line| line.is_empty()).take_while(|line| line.starts_with("//!")).count();
        if header == 0 {
            broken.push(format!("{}: no header: what it is, on which core, who calls it, its invariants", source.path));
            continue;
        }
        let bound = if source.path.ends_with("/src/lib.rs") { CRATE_HEADER_LINES_MAX } else { HEADER_LINES_MAX };
        if header > bound {
            broken.push(format!("{}: a header of {header} lines: the bound is {bound}", source.path));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    fn broken(path: &str, text: &str, exceptions: &str) -> Vec<String> {
        over_bounds(&[Source::new(path, text)], &Exceptions::parse(exceptions))
    }

    #[test]
    fn a_long_function_is_found_unless_it_is_listed_and_may_not_grow() {
        assert_eq!(broken("net/src/a.rs", &long_function(75), "").len(), 0);
        assert_eq!(broken("net/src/a.rs", &long_function(76), "").len(), 1);
        assert_eq!(broken("net/src/a.rs", &long_function(76), "fn net/src/a.rs::f 80").len(), 0);
        assert_eq!(
            broken("net/src/a.rs", &long_function(81), "fn net/src/a.rs::f 80"),
            ["net/src/a.rs:1: fn f has 81 lines: grew past its exception of 80"]
        );
        assert_eq!(broken("net/src/a.rs", "", "fn net/src/a.rs::f 80").len(), 1);
        assert_eq!(broken("net/src/a/tests.rs", &long_function(76), "").len(), 0);
        assert_eq!(broken("net/src/a/tests.rs", &long_function(121), "").len(), 1);
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(broken("net/src/a.rs", &"\n".repeat(601), "").len(), 1);
        let with_tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(500), "\n".repeat(310));
        assert_eq!(broken("net/src/a.rs", &with_tests, "").len(), 1);
        assert_eq!(broken("net/src/a/tests.rs", &"\n".repeat(801), "file net/src/a/tests.rs 801").len(), 0);
    }

    #[test]
    fn a_limit_outside_the_file_of_limits_is_found() {
        assert_eq!(broken("net/src/a.rs", "pub const FRAMES_MAX: usize = 3;", "").len(), 1);
        assert_eq!(broken("net/src/a.rs", "pub const FRAMES_MAX: usize = 3;", "limit net/src/a.rs::FRAMES_MAX 1").len(), 0);
        assert_eq!(broken("protocol/src/limits.rs", "pub const FRAMES_MAX: usize = 3;", "").len(), 0);
    }

    #[test]
    fn unwanted_names_are_found() {
        let count = |text: &str| names(&[Source::new("net/src/a.rs", text)]).len();
        assert_eq!(count("fn get_offset() {}"), 1);
        assert_eq!(count("fn target() { let get = 1; }"), 0);
        assert_eq!(count("struct MsgQueue;"), 1);
        assert_eq!(count("fn read_lso() {}"), 1);
        assert_eq!(count("pub struct Message;"), 1);
        assert_eq!(count("mod utils;"), 1);
        assert_eq!(count("fn t7_short() {}"), 1);
        assert_eq!(count("fn t07_long() {}"), 0);
        assert_eq!(count("fn requests_in_flight() {}"), 0);
    }

    #[test]
    fn a_missing_or_long_header_is_found() {
        let count = |text: &str| headers(&[Source::new("net/src/a.rs", text)]).len();
        assert_eq!(count("use something::or::other::{first, second};\n"), 1);
        assert_eq!(count("//! What it is.\nuse x;\n"), 0);
        assert_eq!(count(&format!("{}use something::or::other::than::this;\n", "//! x\n".repeat(21))), 1);
    }
}
