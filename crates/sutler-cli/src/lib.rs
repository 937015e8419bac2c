//! The `sutler` command: the same from the wheel's console script and from `python -m sutler`.
//!
//! Every command prints facts a person reads, or with `--json` the same facts for a program; it exits with 0 when done, 1
//! when the job failed and 2 for wrong arguments.

mod analyze;
mod bench;
mod boxes;
mod dataset;
mod demo;
mod inspect;
mod inspect_text;
pub mod photos;
pub mod plan;
mod prepare;
mod report;
mod serve;
pub mod volumes;

pub use analyze::Analyze;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Feeds training jobs so that the accelerator never waits.
#[derive(Parser)]
#[command(name = "sutler", version, about, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Bench(bench::Bench),
    Analyze(Analyze),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Prepare(prepare::Prepare),
    Serve(serve::Serve),
}

/// Why a command failed, as the sentences a person reads.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command line with these arguments (without the program's name). `python` is the interpreter that can run
/// peers for comparison, where there is one. `analyse` carries an analysis out: what it measures are loaders, so it lives
/// where they do. Returns the exit code.
#[must_use]
pub fn run(
    arguments: &[String],
    python: Option<&str>,
    analyse: &dyn Fn(&Analyze) -> Result<(), Failed>,
) -> u8 {
    let named = std::iter::once("sutler").chain(arguments.iter().map(String::as_str));
    let parsed = match Arguments::try_parse_from(named) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are answers; everything else is a wrong argument.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return code;
        }
    };
    let contradiction = match &parsed.command {
        Command::Serve(serve) => serve.contradiction().map(|text| ("serve", text)),
        Command::Prepare(prepare) => prepare.contradiction().map(|text| ("prepare", text)),
        _ => None,
    };
    if let Some((command, text)) = contradiction {
        let _ = refusal(command, text).print();
        return 2;
    }
    let result = match parsed.command {
        Command::Demo(demo) => demo.run(python),
        Command::Bench(bench) => bench.run(),
        Command::Analyze(analyze) => analyse(&analyze),
        Command::Inspect(inspect) => inspect.run(),
        Command::Plan(plan) => plan.run(),
        Command::Prepare(prepare) => prepare.run(),
        Command::Serve(serve) => serve.run(),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    }
}

/// What is wrong with the arguments of a command, with the usage of that very command beside it.
fn refusal(command: &str, text: String) -> clap::Error {
    let mut all = Arguments::command();
    all.build();
    match all.find_subcommand_mut(command) {
        Some(command) => command.error(ErrorKind::ArgumentConflict, text),
        None => all.error(ErrorKind::ArgumentConflict, text),
    }
}
