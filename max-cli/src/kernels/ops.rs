//! `max ops`: the registered kernels.

use std::io::Write;

use max::dtype::DType;
use max::kernel::KernelLibrary;
use max::kernel::abi::{
    Access, DTypeRef, GenericDef, GridAxis, GridOp, GridTerm, KernelDef, KernelKind, Level, ParamDef,
};
use serde_json::{Value, json};

use crate::columns::{Align, Columns};
use crate::error::CliError;
use crate::kernels::variant::{generic_dtypes, param_kind};

/// Arguments of `max ops`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernel to describe
    name: Option<String>,
    /// Describe every kernel
    #[arg(long)]
    long: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, library: &KernelLibrary, out: &mut dyn Write) -> Result<(), CliError> {
    let kernels: Vec<&KernelDef> = match &args.name {
        Some(name) => vec![library.table(name)?],
        None => library.iter().collect(),
    };
    if args.json {
        for def in kernels {
            writeln!(out, "{}", to_json(def))?;
        }
    } else if args.long || args.name.is_some() {
        for (i, def) in kernels.into_iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            describe(def, out)?;
        }
    } else {
        list(&kernels, out)?;
    }
    Ok(())
}

/// Characters of a kernel's documentation that the list shows.
const DOC_WIDTH: usize = 64;

fn list(kernels: &[&KernelDef], out: &mut dyn Write) -> Result<(), CliError> {
    let left = |name| (name, Align::Left);
    let mut table =
        Columns::new(&[left("op"), left("dtypes"), left("parameters"), left("crate"), left("what it does")]);
    for def in kernels {
        let generics = def.generics.as_slice();
        let dtypes: Vec<String> = match generics {
            [] => fixed_dtypes(def),
            [generic] => vec![short_dtypes(generic)],
            _ => generics.iter().map(|g| format!("{}: {}", g.name.as_str(), short_dtypes(g))).collect(),
        };
        let params: Vec<&str> = def.params.as_slice().iter().map(|param| param.name.as_str()).collect();
        table.row([
            def.name.as_str().to_owned(),
            dtypes.join("; "),
            params.join(", "),
            def.krate.as_str().to_owned(),
            shorten(def.doc.as_str()),
        ]);
    }
    table.print(0, out)?;
    writeln!(out, "\n{} kernels; `max ops NAME` describes one, `max ptx NAME` prints its PTX", kernels.len())?;
    Ok(())
}

fn shorten(doc: &str) -> String {
    match doc.char_indices().nth(DOC_WIDTH) {
        Some((end, _)) => format!("{}…", doc[..end].trim_end()),
        None => doc.to_owned(),
    }
}

fn describe(def: &KernelDef, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out, "{}\n  {}\n", def.name.as_str(), def.signature.as_str())?;
    if !def.doc.as_str().is_empty() {
        writeln!(out, "  {}\n", def.doc.as_str())?;
    }
    let mut rows = Columns::list();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    let kind = match def.kind {
        KernelKind::Elementwise => "elementwise: applied to every element of operands of one shape".to_owned(),
        KernelKind::Program => {
            let axes: Vec<String> = def.grid.as_slice().iter().map(|axis| grid_axis(def, axis)).collect();
            format!("a grid of programs: {}", axes.join(" x "))
        }
    };
    row("kind", kind);
    for (i, operand) in def.operands.as_slice().iter().enumerate() {
        let rank = if operand.rank < 0 { "any rank".to_owned() } else { format!("rank {}", operand.rank) };
        let (name, dtype) = (operand.name.as_str(), dtype_name(def, operand.dtype));
        row(if i == 0 { "operands" } else { "" }, format!("{name}: {dtype}, {rank}, {}", access(operand.access)));
    }
    for (i, generic) in def.generics.as_slice().iter().enumerate() {
        let dtypes: Vec<&str> = generic_dtypes(generic).map(DType::short_name).collect();
        let sizes = if generic.by_size { ", each for all dtypes of its size" } else { "" };
        row(if i == 0 { "dtypes" } else { "" }, format!("{} = {}{sizes}", generic.name.as_str(), dtypes.join(" ")));
    }
    for (i, param) in def.params.as_slice().iter().enumerate() {
        row(if i == 0 { "parameters" } else { "" }, describe_param(param));
    }
    if !def.tile_names.as_slice().is_empty() {
        row("tile on GPUs", tile(def, def.gpu_tile.as_slice()));
        for special in def.gpu_tiles.as_slice() {
            let dtypes: Vec<&str> =
                special.dtypes.as_slice().iter().filter_map(|c| DType::from_code(*c)).map(DType::short_name).collect();
            let dtypes = if dtypes.is_empty() { String::new() } else { format!(", for {}", dtypes.join(" ")) };
            let conditions = def.conditions_of(special);
            let conditions = if conditions.is_empty() { conditions } else { format!(", where {conditions}") };
            let gpus = if special.sm == 0 { "GPUs".to_owned() } else { format!("sm_{}a", special.sm) };
            row(&format!("tile on {gpus}"), tile(def, special.tile.as_slice()) + &dtypes + &conditions);
        }
        for level in levels(def) {
            let instance = def.instances.as_slice().iter().find(|instance| instance.level == level);
            row(&format!("tile on {}", level.name()), tile(def, instance.map_or(&[], |i| i.tile.as_slice())));
        }
    }
    let names: Vec<&str> = levels(def).into_iter().map(Level::name).collect();
    let optimized = if def.optimized { "" } else { ", WITHOUT OPTIMIZATION (see `max info`)" };
    row("compiled", format!("{} forms, for {}{optimized}", def.instances.as_slice().len(), names.join(" ")));
    row("defined", format!("crate {}, {}:{}", def.krate.as_str(), def.file.as_str(), def.line));
    if def.columns.is_some() {
        row("columns", "rows that are columns in memory are read as they lie".to_owned());
    }
    if def.nondeterministic {
        row("results", "depend on the order of programs, which is not fixed".to_owned());
    }
    rows.print(2, out)?;
    Ok(())
}

fn describe_param(param: &ParamDef) -> String {
    let default = if param.has_default { format!(", default {}", default_text(param)) } else { String::new() };
    format!("{}: {}{default}", param.name.as_str(), param_kind(param))
}

fn default_text(param: &ParamDef) -> String {
    match param.kind {
        max::kernel::abi::ParamKind::String => format!("{:?}", param.default_text.as_str()),
        _ => param.default_text.as_str().to_owned(),
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::In => "read",
        Access::Out => "written",
        Access::InOut => "changed in place",
    }
}

fn dtype_name(def: &KernelDef, dtype: DTypeRef) -> &'static str {
    match usize::try_from(dtype.generic) {
        Ok(i) => def.generics.as_slice().get(i).map_or("?", |generic| generic.name.as_str()),
        Err(_) => DType::from_code(dtype.fixed).map_or("?", DType::short_name),
    }
}

fn grid_axis(def: &KernelDef, axis: &GridAxis) -> String {
    if let Some(terms) = axis.terms(def.grid_terms.as_slice()) {
        return grid_expression(def, terms);
    }
    let Ok(operand) = usize::try_from(axis.operand) else { return axis.size.to_string() };
    let name = def.operands.as_slice().get(operand).map_or("?", |operand| operand.name.as_str());
    let dim = format!("{name}.dim({})", axis.dim);
    let tile = usize::try_from(axis.tile).ok().and_then(|t| def.tile_names.as_slice().get(t));
    match tile {
        Some(tile) => format!("{dim} / {}", tile.as_str()),
        None if axis.size > 1 => format!("{dim} / {}", axis.size),
        None => dim,
    }
}

/// An expression as it may be written.
fn grid_expression(def: &KernelDef, terms: &[GridTerm]) -> String {
    let mut values: Vec<String> = Vec::new();
    for term in terms {
        let index = term.index as usize;
        let mut operands = || (values.pop().unwrap_or_default(), values.pop().unwrap_or_default());
        let value = match term.op {
            GridOp::Number => term.value.to_string(),
            GridOp::Dim => {
                let name = def.operands.as_slice().get(index).map_or("?", |operand| operand.name.as_str());
                format!("{name}.dim({})", term.value)
            }
            GridOp::Param => def.params.as_slice().get(index).map_or("?", |param| param.name.as_str()).to_owned(),
            GridOp::Tile => def.tile_names.as_slice().get(index).map_or("?", |name| name.as_str()).to_owned(),
            GridOp::Min | GridOp::Max => {
                let (b, a) = operands();
                format!("{a}.{}({b})", term.op.name())
            }
            GridOp::Add | GridOp::Sub | GridOp::Mul | GridOp::Div => {
                let (b, a) = operands();
                let sign = match term.op {
                    GridOp::Add => '+',
                    GridOp::Sub => '-',
                    GridOp::Mul => '*',
                    _ => '/',
                };
                format!("({a} {sign} {b})")
            }
        };
        values.push(value);
    }
    let text = values.pop().unwrap_or_default();
    let in_parentheses = |op| matches!(op, GridOp::Add | GridOp::Sub | GridOp::Mul | GridOp::Div);
    match terms.last() {
        Some(last) if in_parentheses(last.op) => text.get(1..text.len() - 1).unwrap_or_default().to_owned(),
        _ => text,
    }
}

fn tile(def: &KernelDef, sizes: &[u64]) -> String {
    let sizes = def.tile_names.as_slice().iter().zip(sizes).map(|(name, size)| format!("{} = {size}", name.as_str()));
    sizes.collect::<Vec<_>>().join(", ")
}

fn levels(def: &KernelDef) -> Vec<Level> {
    let mut levels: Vec<Level> = def.instances.as_slice().iter().map(|instance| instance.level).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

/// The dtypes of the operands of a kernel that is not generic, each once.
fn fixed_dtypes(def: &KernelDef) -> Vec<String> {
    let mut dtypes: Vec<String> = Vec::new();
    for operand in def.operands.as_slice() {
        let name = dtype_name(def, operand.dtype).to_owned();
        if !dtypes.contains(&name) {
            dtypes.push(name);
        }
    }
    dtypes
}

/// The dtypes of a generic, whole classes by one word.
fn short_dtypes(generic: &GenericDef) -> String {
    if generic.by_size {
        return "any".to_owned();
    }
    let mut left: Vec<DType> = generic_dtypes(generic).collect();
    let mut words = Vec::new();
    let classes: [(&str, &[DType]); 4] = [
        ("float", &[DType::F16, DType::BF16, DType::F32, DType::F64]),
        ("float8", &[DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ]),
        ("int", &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64]),
        ("signed int", &[DType::I8, DType::I16, DType::I32, DType::I64]),
    ];
    for (word, class) in classes {
        if class.iter().all(|dtype| left.contains(dtype)) {
            left.retain(|dtype| !class.contains(dtype));
            words.push(word);
        }
    }
    words.extend(left.into_iter().map(DType::short_name));
    words.join(", ")
}

fn to_json(def: &KernelDef) -> Value {
    let operands = def.operands.as_slice().iter().map(|operand| {
        json!({
            "name": operand.name.as_str(),
            "access": match operand.access { Access::In => "in", Access::Out => "out", Access::InOut => "inout" },
            "dtype": dtype_name(def, operand.dtype),
            "rank": (operand.rank >= 0).then_some(operand.rank),
        })
    });
    let generics = def.generics.as_slice().iter().map(|generic| {
        let dtypes: Vec<&str> = generic_dtypes(generic).map(DType::short_name).collect();
        json!({ "name": generic.name.as_str(), "dtypes": dtypes, "by_size": generic.by_size })
    });
    let params = def.params.as_slice().iter().map(|param| {
        let choices: Vec<&str> = param.choices.as_slice().iter().map(|choice| choice.as_str()).collect();
        json!({
            "name": param.name.as_str(),
            "kind": format!("{:?}", param.kind).to_lowercase(),
            "default": param.has_default.then_some(param.default_text.as_str()),
            "choices": choices,
        })
    });
    json!({
        "op": def.name.as_str(),
        "kind": match def.kind { KernelKind::Elementwise => "elementwise", KernelKind::Program => "program" },
        "signature": def.signature.as_str(),
        "doc": def.doc.as_str(),
        "operands": operands.collect::<Vec<_>>(),
        "generics": generics.collect::<Vec<_>>(),
        "params": params.collect::<Vec<_>>(),
        "levels": levels(def).into_iter().map(Level::name).collect::<Vec<_>>(),
        "optimized": def.optimized,
        "crate": def.krate.as_str(),
        "file": def.file.as_str(),
        "line": def.line,
    })
}
