//! What a `Cargo.toml` says about dependencies. Reads the plain form that this workspace uses and refuses any other.

use std::collections::BTreeMap;

/// Dependencies of one package, by section.
#[derive(Debug, Default)]
pub struct Manifest {
    /// `[dependencies]`.
    pub normal: Vec<String>,
    /// `[dev-dependencies]`.
    pub dev: Vec<String>,
    /// Values of other sections: `section.key` to the raw value.
    pub values: BTreeMap<String, String>,
}

impl Manifest {
    /// # Panics
    /// On a form that this reader doesn't know: a dependency must not slip through unread.
    pub fn parse(text: &str) -> Manifest {
        let mut manifest = Manifest::default();
        let mut section = String::new();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|line| !line.is_empty()) {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_start_matches('[').trim_end_matches(']').to_owned();
                let known = !section.contains("dependencies")
                    || ["dependencies", "dev-dependencies", "workspace.dependencies"].contains(&section.as_str());
                assert!(
                    known,
                    "the section [{section}] isn't read by the layering test: write the dependency in [dependencies] or [dev-dependencies]"
                );
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let name = key.trim().split('.').next().unwrap_or("").trim_matches('"').to_owned();
            assert!(section != "dependencies" || !value.contains("package"), "a renamed dependency hides its name: {line}");
            match section.as_str() {
                "dependencies" => manifest.normal.push(name),
                "dev-dependencies" => manifest.dev.push(name),
                _ => {
                    manifest.values.insert(format!("{section}.{}", key.trim()), value.trim().to_owned());
                }
            }
        }
        manifest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_dependency_are_read() {
        let manifest = Manifest::parse(
            "[dependencies]\na.workspace = true\nb = { version = \"1\" } # why\n\n[dev-dependencies]\nc = \"1\"\n[lints]\nworkspace = true\n",
        );
        assert_eq!(manifest.normal, ["a", "b"]);
        assert_eq!(manifest.dev, ["c"]);
        assert_eq!(manifest.values["lints.workspace"], "true");
    }

    #[test]
    #[should_panic(expected = "isn't read by the layering test")]
    fn a_section_that_is_not_read_is_refused() {
        Manifest::parse("[target.'cfg(unix)'.dependencies]\nx = \"1\"\n");
    }

    #[test]
    #[should_panic(expected = "hides its name")]
    fn a_renamed_dependency_is_refused() {
        Manifest::parse("[dependencies]\nx = { package = \"y\", version = \"1\" }\n");
    }
}
