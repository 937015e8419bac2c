mod admission;
mod memory;
