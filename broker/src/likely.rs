//! The name that was probably meant, for messages about unknown names.

/// The candidate nearest to `name`, if it is near enough to be a slip of the keyboard.
#[must_use]
pub fn likely<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let allowed = (name.len() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &candidate.to_ascii_lowercase().replace('-', "_")), candidate))
        .filter(|(far, _)| *far <= allowed)
        .min_by_key(|(far, _)| *far)
        .map(|(_, candidate)| candidate)
}

/// Insertions, removals, replacements and swaps of neighbours that turn `left` into `right`.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(128).collect();
    let right: Vec<char> = right.chars().take(128).collect();
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let replaced = last[j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                let before: &Vec<usize> = &before_last;
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let names = ["memory", "listen", "data", "idle_timeout"];
        assert_eq!(likely("memmory", names), Some("memory"));
        assert_eq!(likely("lisetn", names), Some("listen"));
        assert_eq!(likely("idle-timeout", names), Some("idle_timeout"));
        assert_eq!(likely("colour", names), None);
        assert_eq!(likely("", names), None);
    }
}
