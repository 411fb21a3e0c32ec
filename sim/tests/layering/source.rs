//! Rust source as the rules see it: comments and literals blanked, test code marked, functions measured.
//!
//! No parser: a scanner that knows strings, characters, lifetimes and nested comments is enough for what the rules ask,
//! and it can't disagree with a newer edition of the language about anything else.

use std::ops::Range;

/// A function, as far as its length goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Number of its first line, from 1.
    pub line: usize,
    /// Lines from the `fn` to the closing brace.
    pub lines: usize,
}

/// One file.
pub struct Source {
    /// Path below the repository, with `/`.
    pub path: String,
    /// As written.
    pub text: String,
    /// The same length, with comments and the inside of literals blanked.
    pub code: String,
    /// Bytes of `#[cfg(test)]` items.
    tests: Vec<Range<usize>>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let tests = test_items(&code);
        Source { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// Whether the whole file is test code.
    pub fn is_test_file(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.split('/').any(|part| part == "tests" || part == "benches" || part == "examples")
    }

    /// Whether it holds next to nothing: a crate that is yet to be written.
    pub fn is_empty(&self) -> bool {
        self.code.split_whitespace().map(str::len).sum::<usize>() < 30
    }

    /// Whether a position lies in test code.
    pub fn in_tests(&self, position: usize) -> bool {
        self.is_test_file() || self.tests.iter().any(|range| range.contains(&position))
    }

    pub fn line_of(&self, position: usize) -> usize {
        self.code[..position].matches('\n').count() + 1
    }

    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// Lines outside `#[cfg(test)]` items; 0 in a test file.
    pub fn lines_without_tests(&self) -> usize {
        if self.is_test_file() {
            return 0;
        }
        let inside: usize = self.tests.iter().map(|range| self.code[range.clone()].matches('\n').count() + 1).sum();
        self.lines().saturating_sub(inside)
    }

    /// Identifiers and keywords of the code, with their positions.
    pub fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        words(&self.code)
    }

    /// Functions with a body.
    pub fn functions(&self) -> Vec<Function> {
        let bytes = self.code.as_bytes();
        let mut functions = Vec::new();
        let mut previous = (0, "");
        for (position, word) in self.words() {
            if previous.1 == "fn"
                && self.code[previous.0 + 2..position].trim().is_empty()
                && let Some(body) = body_of(bytes, position + word.len())
            {
                let line = self.line_of(previous.0);
                functions.push(Function { name: word.to_owned(), line, lines: self.line_of(body.end - 1) + 1 - line });
            }
            previous = (position, word);
        }
        functions
    }
}

/// Identifiers and keywords with their positions.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + code[rest..].find(is_word)?;
        let end = code[start..].find(|c| !is_word(c)).map_or(code.len(), |length| start + length);
        rest = end;
        Some((start, &code[start..end]))
    })
}

/// The braces of the item whose signature goes on at `from`, if it has any before a `;`.
fn body_of(bytes: &[u8], from: usize) -> Option<Range<usize>> {
    let mut depth = 0_i32;
    for (at, byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => return Some(at..closing(bytes, at)?),
            _ => {}
        }
    }
    None
}

/// The position behind the brace that closes the one at `open`.
fn closing(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// `#[cfg(test)]` with the item that it stands on.
fn test_items(code: &str) -> Vec<Range<usize>> {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    code.match_indices(ATTRIBUTE)
        .map(|(start, _)| {
            let after = start + ATTRIBUTE.len();
            let semicolon = code[after..].find(';').map(|length| after + length + 1);
            let end = body_of(code.as_bytes(), after).map(|body| body.end).or(semicolon).unwrap_or(code.len());
            start..end
        })
        .collect()
}

/// Blanks comments and the inside of literals, byte for byte; line ends stay.
pub fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |n| at + n)
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => end_of_block_comment(bytes, at),
            b'"' => end_of_string(bytes, at),
            b'r' | b'b' | b'c' if !is_word_before(bytes, at) => match raw_string(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match end_of_character(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(out).expect("blanked whole literals and comments")
}

fn is_word_before(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'/', b'*') => (depth, at) = (depth + 1, at + 2),
            (b'*', b'/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."`, `br#"..."#` and the like, or none if no raw string begins here.
fn raw_string(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    while matches!(bytes.get(at), Some(b'b' | b'c')) {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    at += 1 + hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let length = bytes[at + 1..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| at + 1 + length + close.len()))
}

/// The end of a character literal, or none for a lifetime.
fn end_of_character(bytes: &[u8], quote: usize) -> Option<usize> {
    if bytes.get(quote + 1) == Some(&b'\\') {
        let from = quote + 3;
        return bytes[from..].iter().position(|byte| *byte == b'\'').map(|length| from + length + 1);
    }
    let text = std::str::from_utf8(&bytes[quote + 1..]).ok()?;
    let length = text.chars().next()?.len_utf8();
    (bytes.get(quote + 1 + length) == Some(&b'\'')).then_some(quote + 2 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lifetimes_are_not() {
        let text = "a /* x /* y */ z */ b // c\n'q' '\\n' '\\'' &'life d \"e\\\"f\" r#\"g\"h\"# i 'ü'";
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = words(&code).map(|(_, word)| word).collect();
        assert_eq!(words, ["a", "b", "life", "d", "i"]);
    }

    #[test]
    fn functions_are_measured_from_the_name_to_the_closing_brace() {
        let source = Source::new(
            "x/src/a.rs",
            "trait T {\n    fn no_body(&self) -> [u8; 3];\n}\nfn one() {}\nfn three<T>(a: [u8; 2])\nwhere\n    T: A,\n{\n    if x { y } else { z }\n}\n",
        );
        let lengths: Vec<(String, usize)> = source.functions().into_iter().map(|f| (f.name, f.lines)).collect();
        assert_eq!(lengths, [("one".to_owned(), 1), ("three".to_owned(), 6)]);
    }

    #[test]
    fn test_items_are_not_product_code() {
        let source = Source::new(
            "x/src/a.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(test)]\nmod more;\nfn c() {}\n",
        );
        assert_eq!(source.lines_without_tests(), 2);
        let in_tests: Vec<bool> =
            ["fn a", "fn b", "more", "fn c"].iter().map(|text| source.in_tests(source.code.find(text).unwrap())).collect();
        assert_eq!(in_tests, [false, true, true, false]);
        assert!(Source::new("x/src/a/tests.rs", "").is_test_file());
    }
}
