//! The shared order in virtual time, and what it is held to.

mod composition;
mod driver;
mod histories;
mod oracles;
mod randomness;
mod rules;
