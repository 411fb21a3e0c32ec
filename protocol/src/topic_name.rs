//! What a topic may be called: Kafka's rules, so that a topic made here has a name there too. Names never become paths:
//! directories are named by topic id.

use crate::limits::TOPIC_NAME_BYTES_MAX;

/// Why a name can't be a topic's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// No name at all.
    #[error("topic name is empty")]
    Empty,
    /// "." or "..".
    #[error("topic name can't be \"{name}\"")]
    Dots {
        /// The name.
        name: String,
    },
    /// Longer than allowed.
    #[error("topic name of {bytes} bytes, {TOPIC_NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
    },
    /// A character that names may not have.
    #[error("topic name has {found:?} at byte {at}; letters, digits, '.', '_' and '-' of ASCII are allowed")]
    Character {
        /// The character.
        found: char,
        /// Where it stands, in bytes.
        at: usize,
    },
}

/// Checks a topic's name.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(name: &str) -> Result<(), TopicNameError> {
    if name.is_empty() {
        return Err(TopicNameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(TopicNameError::Dots { name: name.to_owned() });
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(TopicNameError::TooLong { bytes: name.len() });
    }
    match name.char_indices().find(|&(_, letter)| !may_have(letter)) {
        Some((at, found)) => Err(TopicNameError::Character { found, at }),
        None => Ok(()),
    }
}

/// Whether two names are one in metrics, where '.' becomes '_': Kafka refuses to have both.
#[must_use]
pub fn collide(one: &str, other: &str) -> bool {
    let folded = |byte| if byte == b'.' { b'_' } else { byte };
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

fn may_have(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kafka_takes_are_taken() {
        for name in ["a", "events", "Events.2024_01-eu", "...", "-", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_kafka_refuses_are_refused() {
        assert_eq!(check(""), Err(TopicNameError::Empty));
        for name in [".", ".."] {
            assert_eq!(check(name), Err(TopicNameError::Dots { name: name.to_owned() }));
        }
        assert_eq!(check(&"x".repeat(250)), Err(TopicNameError::TooLong { bytes: 250 }));
        for (name, found, at) in [
            ("a/b", '/', 1),
            ("../etc", '/', 2),
            ("a b", ' ', 1),
            ("naïve", 'ï', 2),
            ("a\0", '\0', 1),
            ("a:b", ':', 1),
            ("topic\n", '\n', 5),
        ] {
            assert_eq!(check(name), Err(TopicNameError::Character { found, at }));
        }
    }

    #[test]
    fn dots_and_underscores_collide() {
        assert!(collide("a.b", "a_b"));
        assert!(collide("a.b", "a.b"));
        assert!(!collide("a.b", "a-b"));
        assert!(!collide("a.b", "a.bc"));
    }
}
