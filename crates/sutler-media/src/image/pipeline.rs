//! The pipeline that runs the operations.
