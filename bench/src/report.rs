//! Figures with their limits and bars, as a table and as JSON.

use std::path::Path;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

/// Which side of a bar is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// At or above the bar.
    Higher,
    /// At or below the bar.
    Lower,
}

/// How a figure stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The aim is met.
    Aim,
    /// What must be is met.
    Must,
    /// What must be is missed, and a limit of the machine, measured in the same run, is the cause.
    Machine,
    /// What must be is missed.
    Missed,
}

/// A missed bar is the machine's where a bare ring misses it too, and ours is no more than this times its value.
pub const BEYOND_MACHINE_MAX: f64 = 1.3;
/// Within so many times the bare ring's value, a missed bar is the machine's wherever the ring lies: nothing is left for a broker to save.
const LEVEL_WITH_MACHINE_MAX: f64 = 1.1;

/// What the bare machine does under the same load, where that isn't the bar's own limit.
#[derive(Clone, Copy, Debug)]
pub struct MachineLimit {
    /// What was measured.
    pub what: &'static str,
    /// Its value, in the figure's unit.
    pub value: f64,
    /// A figure within so many times the value counts as the machine's.
    pub factor: f64,
}

/// A measured figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// A short name, stable between versions.
    pub name: &'static str,
    /// What was measured, in words.
    pub what: String,
    /// The measured value.
    pub figure: f64,
    /// What the machine allows, measured in the same run; none where the bar is the figure itself.
    pub limit: Option<f64>,
    /// Unit of both.
    pub unit: &'static str,
    /// What the bars are about: figure over limit, or the figure.
    pub ratio: f64,
    /// Which side is good.
    pub better: Better,
    /// What must be.
    pub must: f64,
    /// What we aim for.
    pub aim: f64,
    /// How it stands.
    pub verdict: Verdict,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// The bars of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Which side is good.
    pub better: Better,
    /// What must be.
    pub must: f64,
    /// What we aim for.
    pub aim: f64,
}

impl Bars {
    /// Bars that a figure must reach.
    pub fn at_least(must: f64, aim: f64) -> Bars {
        Bars { better: Better::Higher, must, aim }
    }

    /// Bars that a figure must stay below.
    pub fn at_most(must: f64, aim: f64) -> Bars {
        Bars { better: Better::Lower, must, aim }
    }

    fn verdict(&self, ratio: f64) -> Verdict {
        let meets = |bar: f64| match self.better {
            Better::Higher => ratio >= bar,
            Better::Lower => ratio <= bar,
        };
        if meets(self.aim) {
            Verdict::Aim
        } else if meets(self.must) {
            Verdict::Must
        } else {
            // Also where nothing was measured and the ratio isn't a number.
            Verdict::Missed
        }
    }
}

impl Figure {
    /// A figure whose bars are about its ratio to a limit.
    pub fn against(name: &'static str, what: &str, figure: f64, limit: f64, unit: &'static str, bars: Bars) -> Figure {
        Figure { limit: Some(limit), ..Figure::plain(name, what, figure, unit, bars).with_ratio(figure / limit, bars) }
    }

    /// A figure whose bars are about itself.
    pub fn plain(name: &'static str, what: &str, figure: f64, unit: &'static str, bars: Bars) -> Figure {
        Figure {
            name,
            what: what.to_owned(),
            figure,
            limit: None,
            unit,
            ratio: figure,
            better: bars.better,
            must: bars.must,
            aim: bars.aim,
            verdict: bars.verdict(figure),
            notes: Vec::new(),
        }
    }

    fn with_ratio(mut self, ratio: f64, bars: Bars) -> Figure {
        self.ratio = ratio;
        self.verdict = bars.verdict(ratio);
        self
    }

    /// The same, judged against what the bare machine does: a missed bar is the machine's if that misses the bar too, and the figure
    /// isn't much worse; or if the figure is hardly worse at all.
    pub fn allowed_by(mut self, machine: MachineLimit) -> Figure {
        let bars = Bars { better: self.better, must: self.must, aim: self.aim };
        let machine_ratio = self.limit.map_or(machine.value, |limit| machine.value / limit);
        let within = |factor: f64| match self.better {
            Better::Higher => self.figure * factor >= machine.value,
            Better::Lower => self.figure <= machine.value * factor,
        };
        let is_machines =
            within(LEVEL_WITH_MACHINE_MAX) || (bars.verdict(machine_ratio) == Verdict::Missed && within(machine.factor));
        if self.verdict == Verdict::Missed && is_machines {
            self.verdict = Verdict::Machine;
        }
        let MachineLimit { what, value, .. } = machine;
        let note =
            format!("{what}: {value:.3} {}, ratio {machine_ratio:.2}; ours is {:.2} of it", self.unit, self.figure / value);
        self.note(note)
    }

    /// The same with something worth knowing.
    pub fn note(mut self, note: impl Into<String>) -> Figure {
        self.notes.push(note.into());
        self
    }
}

/// A distribution of latencies.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Whose.
    pub name: String,
    /// How many were measured.
    pub count: u64,
    /// Microseconds.
    pub p50_us: f64,
    /// Microseconds.
    pub p99_us: f64,
    /// Microseconds.
    pub p99_9_us: f64,
    /// Microseconds.
    pub p99_99_us: f64,
    /// Microseconds.
    pub max_us: f64,
}

impl Latencies {
    /// The usual points of a histogram of nanoseconds.
    pub fn of(name: &str, histogram: &Histogram<u64>) -> Latencies {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Latencies {
            name: name.to_owned(),
            count: histogram.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: histogram.max() as f64 / 1000.0,
        }
    }

    fn line(&self) -> String {
        format!(
            "{:<34} n={:<8} p50={:<9.1} p99={:<9.1} p99.9={:<9.1} p99.99={:<9.1} max={:.1} us",
            self.name, self.count, self.p50_us, self.p99_us, self.p99_9_us, self.p99_99_us, self.max_us
        )
    }
}

/// A histogram of nanoseconds, from one to a minute, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

/// Everything that a run found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Processors and kernel.
    pub machine: String,
    /// Sizes are those of a quick check, not of the figures.
    pub quick: bool,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Latency distributions.
    pub latencies: Vec<Latencies>,
}

impl Report {
    /// Adds a figure and shows it.
    pub fn add(&mut self, figure: Figure) {
        println!("{}", row(&figure));
        for note in &figure.notes {
            println!("    {note}");
        }
        self.figures.push(figure);
    }

    /// Adds a distribution and shows it.
    pub fn add_latencies(&mut self, latencies: Latencies) {
        println!("    {}", latencies.line());
        self.latencies.push(latencies);
    }

    /// The table again, as a whole.
    pub fn print(&self) {
        println!("\n{}", self.machine);
        if self.quick {
            println!("quick sizes: ratios of this run say little");
        }
        println!("{}", heading());
        for figure in &self.figures {
            println!("{}", row(figure));
        }
        for latencies in &self.latencies {
            println!("{}", latencies.line());
        }
    }

    /// Whether all that must be is met.
    pub fn passed(&self) -> bool {
        self.figures.iter().all(|figure| figure.verdict != Verdict::Missed)
    }

    /// Writes the report for programs.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self).context("the report can't be written as JSON")?;
        std::fs::write(path, json + "\n").with_context(|| format!("{} can't be written", path.display()))
    }
}

fn heading() -> String {
    format!(
        "{:<20} {:>12} {:>12} {:<10} {:>8}   {:>9} {:>9}  verdict",
        "figure", "measured", "limit", "unit", "ratio", "must", "aim"
    )
}

fn row(figure: &Figure) -> String {
    let limit = figure.limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit:.3}"));
    let sign = match figure.better {
        Better::Higher => ">=",
        Better::Lower => "<=",
    };
    let verdict = match figure.verdict {
        Verdict::Aim => "aim met",
        Verdict::Must => "must met",
        Verdict::Machine => "missed: the machine's limit",
        Verdict::Missed => "MISSED",
    };
    format!(
        "{:<20} {:>12.3} {limit:>12} {:<10} {:>8.3} {sign} {:>8} {:>9}  {verdict}",
        figure.name, figure.figure, figure.unit, figure.ratio, figure.must, figure.aim
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_bars() {
        let bars = Bars::at_least(0.7, 0.9);
        let verdict = |figure: f64| Figure::against("f", "", figure, 1.0, "x", bars).verdict;
        assert_eq!([verdict(0.95), verdict(0.8), verdict(0.6)], [Verdict::Aim, Verdict::Must, Verdict::Missed]);
        let bars = Bars::at_most(2.0, 1.0);
        let verdict = |figure: f64| Figure::plain("f", "", figure, "s", bars).verdict;
        assert_eq!([verdict(0.5), verdict(1.5), verdict(2.5)], [Verdict::Aim, Verdict::Must, Verdict::Missed]);
        assert_eq!(verdict(f64::NAN), Verdict::Missed);
    }

    #[test]
    fn a_missed_bar_is_the_machines_only_if_the_machine_misses_it_and_is_near() {
        let judge = |figure: f64, value: f64| {
            let machine = MachineLimit { what: "bare", value, factor: 1.3 };
            Figure::against("f", "", figure, 100.0, "us", Bars::at_most(4.0, 2.5)).allowed_by(machine).verdict
        };
        assert_eq!(judge(390.0, 900.0), Verdict::Must);
        assert_eq!(judge(1000.0, 900.0), Verdict::Machine);
        assert_eq!(judge(1200.0, 900.0), Verdict::Missed, "far from the machine's");
        assert_eq!(judge(450.0, 390.0), Verdict::Missed, "the machine meets the bar");
        assert_eq!(judge(405.0, 390.0), Verdict::Machine, "the machine meets it with nothing to spare");
        assert_eq!(judge(450.0, f64::NAN), Verdict::Missed);
    }
}
