//! How many cases a property test draws. Tests only.

use proptest::test_runner::Config;

/// At least `cases`; more where `PROPTEST_CASES` asks for them, as the long form of the tests does.
pub(crate) fn at_least(cases: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|asked| asked.parse().ok()).unwrap_or(0);
    Config::with_cases(cases.max(asked))
}
