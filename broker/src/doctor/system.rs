//! The files through which the kernel tells about itself; tests give another root.

use std::fs;
use std::path::{Path, PathBuf};

/// Where `/proc` and `/sys` are.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// This machine.
    #[must_use]
    pub fn real() -> System {
        System { root: PathBuf::from("/") }
    }

    /// A copy of some of its files.
    #[must_use]
    pub fn at(root: &Path) -> System {
        System { root: root.to_owned() }
    }

    /// A path of the system below the root.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text, trimmed; `None` if it can't be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A file that holds one number.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The directory of a cgroup controller for this process, of either version; `None` if there is none.
    #[must_use]
    pub fn cgroup(&self, controller: &str) -> Option<Cgroup> {
        let text = self.text("/proc/self/cgroup")?;
        let mut unified = None;
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_end_matches('/'));
            if controllers.split(',').any(|name| name == controller) {
                // A container sees its own group at the root, whatever the path says.
                let mounts = [
                    format!("/sys/fs/cgroup/{controllers}{path}"),
                    format!("/sys/fs/cgroup/{controller}{path}"),
                    format!("/sys/fs/cgroup/{controller}"),
                ];
                let directory = mounts.into_iter().find(|directory| self.path(directory).is_dir())?;
                return Some(Cgroup { version: 1, directory });
            }
            if controllers.is_empty() {
                unified = Some(path.to_owned());
            }
        }
        let directory = [format!("/sys/fs/cgroup{}", unified?), "/sys/fs/cgroup".to_owned()];
        let directory =
            directory.into_iter().find(|directory| self.path(&format!("{directory}/cgroup.controllers")).is_file())?;
        let has = self.text(&format!("{directory}/cgroup.controllers"))?.split(' ').any(|name| name == controller);
        has.then_some(Cgroup { version: 2, directory })
    }
}

/// A control group of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// 1 or 2.
    pub version: u8,
    /// Its directory.
    pub directory: String,
}
