//! What has stopped the logs of a data directory on one core, shared by them and the [`Directory`](crate::Directory) there.
//!
//! A drive has one cache, so a failed flush is every core's. Cores share nothing: whoever owns them takes the words from where the failure
//! arose and tells the other cores. Only the first failure counts, and only one that arose here is given out: one that was
//! told is known everywhere already, and two cores that told each other would never end.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use runtime::disk::reworded;
use runtime::local::Notify;

/// The first failure, if there was any. A handle.
#[derive(Clone, Default)]
pub(crate) struct DirectoryFailure(Rc<State>);

#[derive(Default)]
struct State {
    first: RefCell<Option<First>>,
    stopped: Notify,
}

struct First {
    cause: Rc<io::Error>,
    /// On this core, not told by another one.
    arose_here: bool,
}

impl DirectoryFailure {
    /// What has stopped the logs, if anything did.
    pub(crate) fn cause(&self) -> Option<Rc<io::Error>> {
        self.0.first.borrow().as_ref().map(|first| first.cause.clone())
    }

    /// Whether the logs go on. A plan under way asks before it writes down that bytes are durable: behind a failed flush, one that
    /// succeeds says nothing of what was written before.
    ///
    /// # Errors
    /// What has stopped them.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(reworded(&cause, cause.to_string())))
    }

    /// Stops the logs for what has failed on this core.
    pub(crate) fn arise(&self, cause: impl FnOnce() -> io::Error) {
        self.stop(true, cause);
    }

    /// Stops the logs for what another core says; whether they went on until now.
    pub(crate) fn tell(&self, words: &str) -> bool {
        self.stop(false, || io::Error::other(words.to_owned()))
    }

    fn stop(&self, arose_here: bool, cause: impl FnOnce() -> io::Error) -> bool {
        let mut first = self.0.first.borrow_mut();
        if first.is_some() {
            return false;
        }
        *first = Some(First { cause: Rc::new(cause()), arose_here });
        drop(first);
        self.0.stopped.notify();
        true
    }

    /// Ends with the words for what has failed on this core; never, if the first failure was told.
    pub(crate) async fn arisen(&self) -> String {
        loop {
            let seen = self.0.stopped.count();
            if let Some(first) = self.0.first.borrow().as_ref().filter(|first| first.arose_here) {
                return first.cause.to_string();
            }
            self.0.stopped.changed(seen).await;
        }
    }
}
