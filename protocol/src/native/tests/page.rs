//! Holds `docs/PROTOCOL.md` to the code: its layouts alone must be enough to read and to write the golden bytes.
//!
//! A reader and a writer below know nothing but the page: they take the tables from its `layout` blocks, and compare with
//! its `frame` and `values` blocks. They use neither rkyv nor this crate's types.

use std::collections::BTreeMap;

use super::golden::{bytes_of, from_hex, to_hex};
use super::samples;
use crate::error::ErrorCode;

const PAGE: &str = include_str!("../../../../docs/PROTOCOL.md");

/// The lines of each fenced block of this kind, by the name behind the kind.
fn blocks(kind: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let opening = format!("```{kind} ");
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix(&opening) {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            assert!(found.insert(name.to_owned(), body.join("\n")).is_none(), "the page has two blocks {kind} {name}");
        }
    }
    found
}

struct Layout {
    size: usize,
    fields: Vec<(usize, String, String)>,
}

/// All structs of the page: `NAME: SIZE bytes`, then one line per field: offset, name, type.
fn layouts() -> BTreeMap<String, Layout> {
    let mut layouts: BTreeMap<String, Layout> = BTreeMap::new();
    let mut current = String::new();
    for block in blocks("layout").values() {
        for line in block.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some(name) = words[0].strip_suffix(':') {
                current = name.to_owned();
                layouts.insert(current.clone(), Layout { size: words[1].parse().unwrap(), fields: vec![] });
            } else {
                let field = (words[0].parse().unwrap(), words[1].to_owned(), words[2..].join(" "));
                layouts.get_mut(&current).unwrap().fields.push(field);
            }
        }
    }
    layouts
}

#[derive(Debug, PartialEq)]
enum Value {
    Number(i128),
    Id(String),
    Text(String),
    List(Vec<Value>),
    Struct(Vec<(String, Value)>),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Id(id) => f.write_str(id),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::List(list) => {
                let list: Vec<String> = list.iter().map(Value::to_string).collect();
                write!(f, "[{}]", list.join(", "))
            }
            Value::Struct(fields) => {
                let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                write!(f, "{{{}}}", fields.join(", "))
            }
        }
    }
}

fn size_of(layouts: &BTreeMap<String, Layout>, kind: &str) -> usize {
    match kind {
        "u8" | "i8" => 1,
        "u16" | "i16" => 2,
        "u32" | "i32" => 4,
        "u64" | "i64" | "text" => 8,
        "id" => 16,
        list if list.starts_with("list of ") => 8,
        name => layouts.get(name).unwrap_or_else(|| panic!("the page has no layout {name}")).size,
    }
}

fn number(bytes: &[u8], is_signed: bool) -> i128 {
    let mut wide = [if is_signed && bytes[bytes.len() - 1] >= 0x80 { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

fn read(layouts: &BTreeMap<String, Layout>, body: &[u8], at: usize, kind: &str) -> Value {
    let here = &body[at..at + size_of(layouts, kind)];
    let list = |element: &str| {
        let start = usize::try_from(i128::try_from(at).unwrap() + number(&here[..4], true)).unwrap();
        let count = usize::try_from(number(&here[4..], false)).unwrap();
        let size = size_of(layouts, element);
        (0..count).map(|index| read(layouts, body, start + index * size, element)).collect::<Vec<_>>()
    };
    match kind {
        "u8" | "u16" | "u32" | "u64" => Value::Number(number(here, false)),
        "i8" | "i16" | "i32" | "i64" => Value::Number(number(here, true)),
        "id" => Value::Id(to_hex(here)),
        "text" => {
            let bytes = list("u8").into_iter().map(|byte| match byte {
                Value::Number(byte) => u8::try_from(byte).unwrap(),
                _ => unreachable!("a list of u8 has numbers"),
            });
            Value::Text(String::from_utf8(bytes.collect()).unwrap())
        }
        kind => match kind.strip_prefix("list of ") {
            Some(element) => Value::List(list(element)),
            None => {
                let fields = layouts[kind].fields.iter();
                Value::Struct(fields.map(|(offset, name, kind)| (name.clone(), read(layouts, body, at + offset, kind))).collect())
            }
        },
    }
}

/// What of a value lies outside of its place, written first, as the page says.
fn write_lists(layouts: &BTreeMap<String, Layout>, value: &Value, kind: &str, out: &mut Vec<u8>) -> Vec<usize> {
    match (value, kind.strip_prefix("list of ")) {
        (Value::Text(text), _) => {
            out.extend_from_slice(text.as_bytes());
            vec![out.len() - text.len()]
        }
        (Value::List(list), Some(element)) => {
            let inner: Vec<Vec<usize>> = list.iter().map(|value| write_lists(layouts, value, element, out)).collect();
            let start = out.len();
            for (value, starts) in list.iter().zip(inner) {
                write_here(layouts, value, element, &starts, out);
            }
            vec![start]
        }
        (Value::Struct(values), None) => {
            let fields = layouts[kind].fields.iter().zip(values);
            fields.flat_map(|((_, _, kind), (_, value))| write_lists(layouts, value, kind, out)).collect()
        }
        _ => vec![],
    }
}

fn write_here(layouts: &BTreeMap<String, Layout>, value: &Value, kind: &str, starts: &[usize], out: &mut Vec<u8>) {
    let mut starts = starts.iter();
    let fields = match value {
        Value::Struct(values) => {
            layouts[kind].fields.iter().zip(values).map(|((_, _, kind), (_, value))| (kind.as_str(), value)).collect()
        }
        value => vec![(kind, value)],
    };
    for (kind, value) in fields {
        let at = i128::try_from(out.len()).unwrap();
        let mut list = |count: usize| {
            let offset = i128::try_from(*starts.next().unwrap()).unwrap() - at;
            [&offset.to_le_bytes()[..4], &count.to_le_bytes()[..4]].concat()
        };
        let bytes = match value {
            Value::Number(number) => number.to_le_bytes()[..size_of(layouts, kind)].to_vec(),
            Value::Id(id) => from_hex(id),
            Value::Text(text) => list(text.len()),
            Value::List(values) => list(values.len()),
            Value::Struct(_) => unreachable!("the page has structs in lists only"),
        };
        out.extend(bytes);
    }
}

fn values_of(value: &Value) -> String {
    let Value::Struct(fields) = value else { unreachable!() };
    fields.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_pages_frames_are_the_golden_bytes() {
    let frames = blocks("frame");
    for sample in samples::all() {
        let shown = frames.get(sample.name).unwrap_or_else(|| panic!("the page shows no {}", sample.name));
        assert_eq!(to_hex(&from_hex(shown)), to_hex(&bytes_of(sample.name)), "{}", sample.name);
    }
    assert_eq!(frames.len(), samples::all().len());
}

#[test]
fn the_pages_layouts_alone_read_and_write_the_golden_bytes() {
    let (layouts, values) = (layouts(), blocks("values"));
    for (name, layout) in &layouts {
        let mut end = 0;
        for (offset, field, kind) in &layout.fields {
            assert_eq!(*offset, end, "{name}.{field}");
            end += size_of(&layouts, kind);
        }
        assert_eq!(layout.size, end, "{name}");
    }
    for sample in samples::all() {
        let body = &bytes_of(sample.name)[32..];
        let read = read(&layouts, body, body.len() - layouts[sample.name].size, sample.name);
        assert_eq!(values_of(&read), values[sample.name], "{}", sample.name);
        let mut written = vec![];
        let starts = write_lists(&layouts, &read, sample.name, &mut written);
        write_here(&layouts, &read, sample.name, &starts, &mut written);
        assert_eq!(to_hex(&written), to_hex(body), "{}", sample.name);
    }
}

#[test]
fn the_page_lists_every_kind_and_code() {
    for kind in super::Kind::ALL {
        let (first, last) = kind.versions();
        let row = format!("| {} | {} | {first} to {last} |", kind.number(), kind.name());
        assert!(PAGE.contains(&row), "the page lacks {row}");
    }
    for &code in ErrorCode::ALL {
        let row = format!("| {} | {} | {} |", code.number(), code.name(), if code.is_retriable() { "yes" } else { "no" });
        assert!(PAGE.contains(&row), "the page lacks {row}");
    }
}

#[test]
fn the_page_states_the_limits() {
    use crate::limits::*;
    for (what, limit) in [
        ("body bytes of a frame", FRAME_BODY_BYTES_MAX),
        ("payload bytes of a frame", FRAME_PAYLOAD_BYTES_MAX),
        ("bytes of a record batch, header included", BATCH_BYTES_CEILING),
        ("records of a batch", BATCH_RECORDS_MAX as usize),
        ("headers of a record", RECORD_HEADERS_MAX),
        ("entries of `batches`, `partitions` and `names` in a request", PARTITIONS_PER_REQUEST_MAX),
        ("entries of `configs`", TOPIC_CONFIGS_MAX),
        ("bytes of a topic name", TOPIC_NAME_BYTES_MAX),
        ("bytes of `client_id`, and of `client_software`", CLIENT_ID_BYTES_MAX),
        ("requests of a connection that wait for their reply", REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX),
    ] {
        assert!(PAGE.contains(&format!("| {what} | {limit} |")), "the page lacks | {what} | {limit} |");
    }
}
