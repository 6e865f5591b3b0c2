//! The forms of a graph outside of the program: its text, which is read back and checked, files, and drawings.

mod dot;
mod file;
mod parse;
mod text;
mod verify;
