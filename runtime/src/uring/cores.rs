//! Several cores of one process, each on a thread of its own, the first on the calling one.
//!
//! Called by broker, bench and tests. Order of events: all cores are made; when all are there, each runs its future, and ends when that has ended;
//! its ring and region stay until all have ended, since others may read what it lent and ring its bell. Threads wait for each
//! other only before the first task of a core and behind its last.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::environment::{CoreConfig, CoreError, RingEnv, run_among};

/// One of the cores that are made together.
pub(super) struct Member {
    party: Arc<Party>,
    built: bool,
    ended: bool,
}

struct Party {
    state: Mutex<PartyState>,
    changed: Condvar,
}

struct PartyState {
    /// Cores that are yet to be made.
    unbuilt: usize,
    /// One couldn't be made.
    failed: bool,
    /// Cores that haven't ended.
    running: usize,
}

/// Makes a core for each of `configs` and runs `main` on each, with its number, to its end. The values are in the order of the cores.
/// Several cores may be on one processor, pinned or not. The thread must not run another executor.
///
/// A core that panics ends; what others ask it ends with nothing. The panic goes on here when all have ended.
///
/// # Errors
/// [`CoreError`], if the machine doesn't give what a core needs: then `main` runs on none, and nothing is left behind.
///
/// # Panics
/// If there is no config, or a core panics.
pub fn run_cores<T, F>(
    configs: Vec<CoreConfig>,
    main: impl Fn(RingEnv, usize) -> F + Send + Sync + Clone + 'static,
) -> Result<Vec<T>, CoreError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    assert!(!configs.is_empty(), "a process has a core");
    let mut members = Party::members(configs.len()).into_iter();
    let core = |(index, config): (usize, CoreConfig)| {
        let (main, member) = (main.clone(), members.next());
        (config.name.clone(), move || run_among(config, member, move |env| main(env, index)))
    };
    // The first core's thread may be pinned soon, and threads inherit that: so it comes last.
    let mut cores: Vec<_> = configs.into_iter().enumerate().map(core).collect();
    let (_, first) = cores.remove(0);
    let start = |(name, core)| std::thread::Builder::new().name(name).spawn(core);
    let threads: Vec<_> = cores.into_iter().map(start).collect();
    let mut ends = vec![catch_unwind(AssertUnwindSafe(first))];
    ends.extend(threads.into_iter().map(|thread| match thread {
        Ok(thread) => thread.join(),
        Err(error) => Ok(Err(CoreError::Executor(format!("its thread doesn't start: {error}")))),
    }));
    let ends: Result<Vec<_>, Box<dyn Any + Send>> = ends.into_iter().collect();
    let ends = ends.unwrap_or_else(|panic| resume_unwind(panic));
    let values: Result<Vec<Option<T>>, CoreError> = ends.into_iter().collect();
    Ok(values?.into_iter().map(|value| value.expect("a core runs if all could be made")).collect())
}

impl Party {
    fn members(count: usize) -> Vec<Member> {
        let state = PartyState { unbuilt: count, failed: false, running: count };
        let party = Arc::new(Party { state: Mutex::new(state), changed: Condvar::new() });
        (0..count).map(|_| Member { party: party.clone(), built: false, ended: false }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, PartyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, state: MutexGuard<'_, PartyState>, goes_on: impl Fn(&PartyState) -> bool) -> bool {
        self.changed.notify_all();
        let state = self.changed.wait_while(state, |state| goes_on(state)).unwrap_or_else(PoisonError::into_inner);
        state.failed
    }
}

impl Member {
    /// This core was made. Ends when all are, or one can't be. Whether `main` is to run.
    pub(super) fn built(&mut self) -> bool {
        let mut state = self.party.lock();
        state.unbuilt -= 1;
        self.built = true;
        !self.party.wait(state, |state| state.unbuilt > 0 && !state.failed)
    }

    /// This core has ended. Ends when all have.
    pub(super) fn ended(mut self) {
        let mut state = self.party.lock();
        state.running -= 1;
        self.ended = true;
        self.party.wait(state, |state| state.running > 0);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.party.lock();
        state.failed |= !self.built;
        state.running -= usize::from(!self.ended);
        drop(state);
        self.party.changed.notify_all();
    }
}
