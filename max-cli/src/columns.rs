//! Text in columns: cells padded to the widest of their column.

use std::io::{self, Write};

/// How a column's cells stand in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// At the left, for words.
    Left,
    /// At the right, for numbers.
    Right,
}

/// A table that is printed once all of its rows are known.
pub struct Columns {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// A table whose first row is `header`.
    pub fn new(header: &[(&str, Align)]) -> Columns {
        let aligns = header.iter().map(|(_, align)| *align).collect();
        Columns { aligns, rows: vec![header.iter().map(|(name, _)| (*name).to_owned()).collect()] }
    }

    /// A table of names and what belongs to them, without a header.
    pub fn list() -> Columns {
        Columns { aligns: vec![Align::Left, Align::Left], rows: Vec::new() }
    }

    /// Adds a row; cells that are left out are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the rows, `indent` spaces from the left, without spaces at the end of lines.
    pub fn print(&self, indent: usize, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..self.aligns.len()).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.aligns) {
                match align {
                    Align::Left => line += &format!("{cell:width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_padded_and_lines_end_without_spaces() {
        let mut table = Columns::new(&[("work", Align::Left), ("ns", Align::Right), ("note", Align::Left)]);
        table.row(["relu".into(), "1234".into(), String::new()]);
        table.row(["µ".into(), "5".into(), "slow".into()]);
        let mut text = Vec::new();
        table.print(2, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "  work    ns  note\n  relu  1234\n  µ        5  slow\n");
    }
}
