//! How far the recovery of a host's logs is, over all of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use storage::RecoveryProgress;

/// The sum over all logs that are being recovered. A handle, of core 0.
#[derive(Clone, Default)]
pub struct Progress(Rc<Cell<RecoveryProgress>>);

impl Progress {
    /// A reporter for one log.
    pub fn of_one(&self) -> impl FnMut(RecoveryProgress) + use<> {
        let sum = self.0.clone();
        let mut last = RecoveryProgress::default();
        move |now| {
            let all = sum.get();
            sum.set(RecoveryProgress {
                scanned: (all.scanned + now.scanned).saturating_sub(last.scanned),
                total: (all.total + now.total).saturating_sub(last.total),
            });
            last = now;
        }
    }

    /// In words, after `elapsed`.
    #[must_use]
    pub fn describe(&self, elapsed: Duration) -> String {
        let all = self.0.get();
        let size = |bytes| bytesize::ByteSize(bytes).display().iec().to_string();
        let left = match all.remaining(elapsed) {
            Some(left) => format!("at most {} s left", left.as_secs() + 1),
            None => "the time left isn't known yet".into(),
        };
        format!("{} of at most {} scanned, {left}", size(all.scanned), size(all.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_several_logs_add_up() {
        let progress = Progress::default();
        let (mut one, mut two) = (progress.of_one(), progress.of_one());
        one(RecoveryProgress { scanned: 0, total: 100 });
        two(RecoveryProgress { scanned: 10, total: 100 });
        one(RecoveryProgress { scanned: 40, total: 100 });
        assert_eq!(progress.0.get(), RecoveryProgress { scanned: 50, total: 200 });
        assert_eq!(progress.describe(Duration::from_secs(2)), "50 B of at most 200 B scanned, at most 7 s left");
    }
}
