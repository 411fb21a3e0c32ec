//! Tables and JSON on standard output.

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::Failure;

/// A table whose columns after the first `left` ones are numbers.
pub fn table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.iter().map(|name| name.to_uppercase()));
    for index in left..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for index in 0..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
        }
    }
    table
}

/// Prints text and a line end.
pub fn print(text: &impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
