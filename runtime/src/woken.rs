//! A waker of a part of a task, which tells whether that part was woken.
//!
//! Used by net's queue of replies. A [`Waker`] may be sent to any thread, so this one flag is atomic, on a core too; nothing waits on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Wakes a task, and notes that it was this part of it that was woken.
pub struct Woken {
    flag: Arc<Flag>,
    waker: Waker,
}

struct Flag {
    woken: AtomicBool,
    task: Waker,
}

impl Woken {
    /// For a part of the task that `task` wakes. A part that is new counts as woken.
    #[must_use]
    pub fn new(task: &Waker) -> Woken {
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), task: task.clone() });
        Woken { waker: Waker::from(flag.clone()), flag }
    }

    /// Whether it wakes the task that `task` wakes.
    #[must_use]
    pub fn is_of(&self, task: &Waker) -> bool {
        self.flag.task.will_wake(task)
    }

    /// What the part is polled with.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether it was woken since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        self.flag.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
