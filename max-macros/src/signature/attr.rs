//! The arguments of `#[kernel(...)]` and of `#[param(...)]`, as typed values.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitInt, LitStr, Token, parenthesized};

use crate::ctxt::{Ctxt, nearest};
use crate::dtype::{Dtype, names};

/// The keys of `#[kernel(...)]`.
const KEYS: [&str; 7] = ["op", "tile", "transposed", "grid", "dtypes", "nondeterministic", "crate"];
/// The targets that `tile(...)` can override.
pub const TILE_TARGETS: [&str; 6] = ["v2", "v3", "v4", "portable", "gpu", ARCHITECTURE];
/// Those of them that are every GPU, and one with instructions of its own. Both may have several shapes of tiles, each for some
/// dtypes and some dims.
const GPU: &str = "gpu";
const ARCHITECTURE: &str = "sm_90a";
/// Its compute capability, as the kernel table has it.
const ARCHITECTURE_SM: u32 = 90;
/// The keys of `#[param(...)]`.
const PARAM_KEYS: [&str; 2] = ["default", "choices"];

/// The arguments of `#[kernel(...)]`.
#[derive(Clone, Default)]
pub struct KernelAttr {
    /// `op = "name"`; without it the function is a helper.
    pub op: Option<LitStr>,
    /// The tile constants.
    pub tile: Vec<TileConst>,
    /// Other values of the tile constants, and when they are taken.
    pub variants: Vec<Variant>,
    /// Other values of the tile constants on GPUs, in the order in which a launch tries them.
    pub gpu_tiles: Vec<GpuTile>,
    /// `transposed(..)`: the arguments of a form whose last operand is transposed.
    pub transposed: Option<(Span, Box<KernelAttr>)>,
    /// `grid(axis, ..)`, as it was written.
    pub grid: Option<(Span, Vec<Expr>)>,
    /// `dtypes(T = [..])`.
    pub dtypes: Vec<(Ident, Vec<&'static Dtype>)>,
    /// `nondeterministic`: results depend on the order of programs.
    pub nondeterministic: Option<Span>,
    /// `crate = path`.
    pub krate: Option<syn::Path>,
    /// Whether the arguments could not be read, so that nothing is known of them.
    pub unread: bool,
}

/// A tile constant and its values.
#[derive(Clone)]
pub struct TileConst {
    /// Its name.
    pub name: Ident,
    /// The value where no target overrides it.
    pub default: u64,
    /// The values for single targets (see [`TILE_TARGETS`]).
    pub overrides: Vec<(&'static str, u64)>,
}

impl TileConst {
    /// The value for a target.
    pub fn value(&self, target: &str) -> u64 {
        self.overrides.iter().find(|(t, _)| *t == target).map_or(self.default, |(_, v)| *v)
    }
}

/// `sm_90a(T = [f16, bf16], BM = 128, ..)` or `gpu(a.dim(0) <= 8, BM = 8, ..)` in `tile(...)`.
#[derive(Clone)]
pub struct GpuTile {
    /// The compute capability that it is for, 0 for any.
    pub sm: u32,
    /// The dtypes of a generic for which it is, as they were written.
    pub dtypes: Option<(Ident, Vec<(Ident, &'static Dtype)>)>,
    /// The dims for which it is.
    pub conditions: Vec<AtMost>,
    /// The values of tile constants, by their index.
    pub values: Vec<(usize, u64)>,
}

/// `when(a.dim(0) <= 8, b.dim(1) <= 64, BM = 8, ..)` in `tile(...)`.
#[derive(Clone)]
pub struct Variant {
    /// When it is taken: where all of them hold.
    pub conditions: Vec<AtMost>,
    /// The values of tile constants, by their index.
    pub values: Vec<(usize, u64)>,
}

/// `a.dim(0) <= 8`.
#[derive(Clone)]
pub struct AtMost {
    /// The operand.
    pub operand: Ident,
    /// The dimension.
    pub dim: LitInt,
    /// Its largest extent.
    pub max: LitInt,
}

/// One `key ...` of the attribute.
enum Item {
    Op(LitStr),
    Tile(Vec<TileItem>),
    Transposed(Span, Vec<TileItem>),
    Grid(Vec<Expr>),
    Dtypes(Vec<(Ident, Vec<Ident>)>),
    Nondeterministic(Span),
    Crate(syn::Path),
}

/// `NAME = 8` or `gpu(NAME = 64, ..)` in `tile(...)`.
enum TileItem {
    Value(Ident, LitInt),
    Target(Ident, Vec<TargetItem>),
    When(Ident, Vec<WhenItem>),
}

/// What stands in `gpu(...)` and the like.
enum TargetItem {
    Value(Ident, LitInt),
    Dtypes(Ident, Vec<Ident>),
    AtMost(AtMost),
}

/// What stands in `when(...)`.
enum WhenItem {
    AtMost(AtMost),
    Value(Ident, LitInt),
}

impl KernelAttr {
    /// Parses the tokens between the parentheses.
    pub fn parse(cx: &Ctxt, tokens: TokenStream) -> KernelAttr {
        let mut attr = KernelAttr::default();
        let items = |input: ParseStream| Punctuated::<_, Token![,]>::parse_terminated_with(input, kernel_item);
        let Some(items) = cx.ok(items.parse2(tokens)) else {
            attr.unread = true;
            return attr;
        };
        let mut seen: Vec<String> = Vec::new();
        let mut transposed = None;
        for (key, item) in items {
            let name = key.to_string();
            // Overrides for single targets may stand in a `tile(...)` of their own.
            if name != "tile" && seen.contains(&name) {
                cx.error(&key, format!("`{name}` is given twice"));
                continue;
            }
            seen.push(name);
            match item {
                Item::Op(value) => {
                    let text = value.value();
                    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
                        cx.error(&value, "an op's name has at least one character and no white space");
                    }
                    attr.op = Some(value);
                }
                Item::Tile(items) => attr.add_tile(cx, items),
                Item::Transposed(span, items) => transposed = Some((span, items)),
                Item::Grid(axes) => {
                    if !(1..=3).contains(&axes.len()) {
                        cx.error(&key, "a grid has 1 to 3 axes: `grid(x.dim(0))`");
                    }
                    attr.grid = Some((key.span(), axes));
                }
                Item::Dtypes(sets) => attr.add_dtypes(cx, sets),
                Item::Nondeterministic(span) => attr.nondeterministic = Some(span),
                Item::Crate(path) => attr.krate = Some(path),
            }
        }
        if let Some((span, items)) = transposed {
            attr.transposed = Some((span, Box::new(attr.with_tile(cx, items))));
        }
        attr
    }

    /// The same with other values where tile constants have them for the same target, dtypes and dims.
    fn with_tile(&self, cx: &Ctxt, items: Vec<TileItem>) -> KernelAttr {
        let mut all = self.clone();
        let mut others = KernelAttr { tile: self.tile.clone(), ..KernelAttr::default() };
        for constant in &mut others.tile {
            constant.overrides.clear();
        }
        let (values, items): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| matches!(item, TileItem::Value(..)));
        for item in values {
            let TileItem::Value(name, value) = item else { continue };
            let Some(value) = tile_value(cx, &value) else { continue };
            match all.tile.iter_mut().find(|constant| constant.name == name) {
                Some(constant) => constant.default = value,
                None => cx.error(&name, format!("`{name}` is not a tile constant: give it a value in `tile(..)`")),
            }
        }
        others.add_tile(cx, items);
        for (all, other) in all.tile.iter_mut().zip(others.tile) {
            for (target, value) in other.overrides {
                all.overrides.retain(|(known, _)| *known != target);
                all.overrides.push((target, value));
            }
        }
        for Variant { conditions, values } in others.variants {
            match all.variants.iter_mut().find(|variant| variant.conditions == conditions) {
                Some(variant) => replace(&mut variant.values, values),
                None => {
                    cx.error_at(conditions.first().map_or_else(Span::call_site, |c| c.operand.span()), NO_SUCH_TILE)
                }
            }
        }
        let names = |tile: &GpuTile| {
            let listed = tile.dtypes.as_ref();
            listed.map(|(generic, list)| (generic.clone(), list.iter().map(|(_, dtype)| *dtype).collect::<Vec<_>>()))
        };
        for tile in others.gpu_tiles {
            let is_same = |known: &&mut GpuTile| {
                (known.sm, &known.conditions, names(known)) == (tile.sm, &tile.conditions, names(&tile))
            };
            match all.gpu_tiles.iter_mut().find(is_same) {
                Some(known) => replace(&mut known.values, tile.values),
                None => cx.error_at(Span::call_site(), NO_SUCH_TILE),
            }
        }
        all
    }

    fn add_tile(&mut self, cx: &Ctxt, items: Vec<TileItem>) {
        let mut overrides = Vec::new();
        let mut variants = Vec::new();
        for item in items {
            match item {
                TileItem::Value(name, value) => {
                    if self.tile.iter().any(|t| t.name == name) {
                        cx.error(&name, format!("`{name}` is given twice"));
                    } else if let Some(default) = tile_value(cx, &value) {
                        self.tile.push(TileConst { name, default, overrides: Vec::new() });
                    }
                }
                TileItem::Target(target, values) => overrides.push((target, values)),
                TileItem::When(key, items) => variants.push((key, items)),
            }
        }
        for (key, items) in variants {
            self.add_variant(cx, &key, items);
        }
        for (target, values) in overrides {
            let Some(known) = TILE_TARGETS.into_iter().find(|t| target == t) else {
                cx.error(&target, format!("unknown target `{target}`: write one of {}", TILE_TARGETS.join(", ")));
                continue;
            };
            let is_gpu = known == ARCHITECTURE || known == GPU;
            let sm = if known == ARCHITECTURE { ARCHITECTURE_SM } else { 0 };
            let mut gpu_tile = GpuTile { sm, dtypes: None, conditions: Vec::new(), values: Vec::new() };
            let mut assigned = Vec::new();
            for item in values {
                match item {
                    TargetItem::Value(name, value) => assigned.push((name, value)),
                    TargetItem::Dtypes(generic, list) if is_gpu && gpu_tile.dtypes.is_none() => {
                        let dtypes = listed(cx, &generic, list, known);
                        gpu_tile.dtypes = Some((generic, dtypes));
                    }
                    TargetItem::AtMost(condition) if is_gpu => gpu_tile.conditions.push(condition),
                    TargetItem::Dtypes(generic, _) => {
                        cx.error(
                            &generic,
                            format!("one list of dtypes may stand in `{GPU}(..)` or `{ARCHITECTURE}(..)` alone"),
                        );
                    }
                    TargetItem::AtMost(AtMost { operand, .. }) => {
                        cx.error(
                            &operand,
                            format!("a CPU's condition stands in `when(..)`, and one of GPUs in `{GPU}(..)`"),
                        );
                    }
                }
            }
            // What is for every GPU, dtype and dim is no shape of its own.
            let is_special = known == ARCHITECTURE || gpu_tile.dtypes.is_some() || !gpu_tile.conditions.is_empty();
            for (name, value) in assigned {
                let Some(value) = tile_value(cx, &value) else { continue };
                match self.tile.iter_mut().enumerate().find(|(_, t)| t.name == name) {
                    Some((index, _)) if is_special => gpu_tile.values.push((index, value)),
                    Some((_, tile)) => tile.overrides.push((known, value)),
                    None => cx.error(
                        &name,
                        format!("`{name}` has no value for the other targets: write `tile({name} = 8, {known}({name} = {value}))`"),
                    ),
                }
            }
            if is_special {
                self.gpu_tiles.push(gpu_tile);
            }
        }
    }

    fn add_variant(&mut self, cx: &Ctxt, key: &Ident, items: Vec<WhenItem>) {
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                WhenItem::AtMost(at_most) => conditions.push(at_most),
                WhenItem::Value(name, value) => match self.tile.iter().position(|t| t.name == name) {
                    Some(index) => values.extend(tile_value(cx, &value).map(|value| (index, value))),
                    None => {
                        cx.error(&name, format!("`{name}` is not a tile constant: give it a value outside of `when`"))
                    }
                },
            }
        }
        if conditions.is_empty() {
            cx.error(key, "`when` needs a condition: `when(x.dim(0) <= 8, BM = 8)`");
        } else {
            self.variants.push(Variant { conditions, values });
        }
    }

    fn add_dtypes(&mut self, cx: &Ctxt, sets: Vec<(Ident, Vec<Ident>)>) {
        for (generic, list) in sets {
            let dtypes = listed(cx, &generic, list, "dtypes").into_iter().map(|(_, dtype)| dtype).collect();
            if self.dtypes.iter().any(|(g, _)| *g == generic) {
                cx.error(&generic, format!("`{generic}` is given twice"));
            } else {
                self.dtypes.push((generic, dtypes));
            }
        }
    }
}

/// What `transposed(..)` cannot have.
const NO_SUCH_TILE: &str = "`transposed(..)` has other values of what stands in `tile(..)`: the same `when(..)`, `gpu(..)` or \
                            `sm_90a(..)`, with the same conditions and dtypes";

/// Takes other values of tile constants where there are some.
fn replace(values: &mut Vec<(usize, u64)>, others: Vec<(usize, u64)>) {
    for (constant, value) in others {
        values.retain(|(known, _)| *known != constant);
        values.push((constant, value));
    }
}

impl PartialEq for AtMost {
    fn eq(&self, other: &AtMost) -> bool {
        let numbers = |of: &AtMost| (of.dim.base10_digits().to_owned(), of.max.base10_digits().to_owned());
        self.operand == other.operand && numbers(self) == numbers(other)
    }
}

/// The dtypes of a generic's list, which stands in `key(..)`.
fn listed(cx: &Ctxt, generic: &Ident, list: Vec<Ident>, key: &str) -> Vec<(Ident, &'static Dtype)> {
    if list.is_empty() {
        cx.error(generic, format!("`{generic}` needs at least one dtype: `{key}({generic} = [f32])`"));
    }
    let mut dtypes: Vec<(Ident, &'static Dtype)> = Vec::new();
    for ident in list {
        match Dtype::find(&ident.to_string()) {
            Some(dtype) if dtypes.iter().any(|(_, known)| *known == dtype) => {
                cx.error(&ident, format!("`{ident}` is listed twice"));
            }
            Some(dtype) => dtypes.push((ident, dtype)),
            None => cx.error(&ident, format!("`{ident}` is not a dtype: write one of {}", names())),
        }
    }
    dtypes
}

fn tile_value(cx: &Ctxt, value: &LitInt) -> Option<u64> {
    let number = cx.ok(value.base10_parse::<u64>())?;
    if (1..=65536).contains(&number) {
        return Some(number);
    }
    cx.error(value, "a tile constant is between 1 and 65536");
    None
}

fn kernel_item(input: ParseStream) -> syn::Result<(Ident, Item)> {
    if input.peek(syn::Lit) {
        let literal: syn::Lit = input.parse()?;
        let hint = match &literal {
            syn::Lit::Str(name) => format!("write `op = {:?}`", name.value()),
            _ => "write `op = \"name\"`".to_string(),
        };
        return Err(syn::Error::new_spanned(literal, format!("the arguments of `#[kernel]` have names: {hint}")));
    }
    let key = Ident::parse_any(input)?;
    let item = match key.to_string().as_str() {
        "op" => {
            value_follows(input, &key, "op = \"name\"")?;
            input.parse::<Token![=]>()?;
            Item::Op(input.parse()?)
        }
        "crate" => {
            value_follows(input, &key, "crate = path")?;
            input.parse::<Token![=]>()?;
            Item::Crate(syn::Path::parse_mod_style(input)?)
        }
        "tile" => Item::Tile(list(input, &key, "tile(BM = 8)", tile_item)?),
        "transposed" => {
            let items = if input.peek(syn::token::Paren) {
                list(input, &key, "transposed(BM = 8)", tile_item)?
            } else {
                Vec::new()
            };
            Item::Transposed(key.span(), items)
        }
        "grid" => Item::Grid(list(input, &key, "grid(x.dim(0))", Expr::parse)?),
        "nondeterministic" => Item::Nondeterministic(key.span()),
        "dtypes" => Item::Dtypes(list(input, &key, "dtypes(T = [f32])", dtypes_item)?),
        other => {
            let hint = match nearest(other, KEYS) {
                Some(key) => format!("did you mean `{key}`?"),
                None => format!("there are {}", KEYS.join(", ")),
            };
            return Err(syn::Error::new(key.span(), format!("`#[kernel]` has no argument `{other}`: {hint}")));
        }
    };
    Ok((key, item))
}

fn value_follows(input: ParseStream, key: &Ident, example: &str) -> syn::Result<()> {
    if input.peek(Token![=]) {
        return Ok(());
    }
    Err(syn::Error::new(key.span(), format!("`{key}` needs a value: `{example}`")))
}

fn list<T>(
    input: ParseStream,
    key: &Ident,
    example: &str,
    item: fn(ParseStream) -> syn::Result<T>,
) -> syn::Result<Vec<T>> {
    if !input.peek(syn::token::Paren) {
        return Err(syn::Error::new(key.span(), format!("`{key}` needs a list: `{example}`")));
    }
    let content;
    parenthesized!(content in input);
    Ok(content.parse_terminated(item, Token![,])?.into_iter().collect())
}

fn tile_item(input: ParseStream) -> syn::Result<TileItem> {
    let name: Ident = input.parse()?;
    if name == "when" {
        return Ok(TileItem::When(name.clone(), list(input, &name, "when(x.dim(0) <= 8, BM = 8)", when_item)?));
    }
    if input.peek(syn::token::Paren) {
        let values = list(input, &name, "gpu(BM = 64)", target_item)?;
        return Ok(TileItem::Target(name, values));
    }
    value_follows(input, &name, &format!("tile({name} = 8)"))?;
    input.parse::<Token![=]>()?;
    Ok(TileItem::Value(name, input.parse()?))
}

fn target_item(input: ParseStream) -> syn::Result<TargetItem> {
    let is_list = input.peek2(Token![=]) && input.peek3(syn::token::Bracket);
    if is_list {
        return dtypes_item(input).map(|(generic, list)| TargetItem::Dtypes(generic, list));
    }
    if input.peek2(Token![.]) {
        return at_most(input).map(TargetItem::AtMost);
    }
    tile_assignment(input).map(|(name, value)| TargetItem::Value(name, value))
}

fn tile_assignment(input: ParseStream) -> syn::Result<(Ident, LitInt)> {
    let name: Ident = input.parse()?;
    value_follows(input, &name, &format!("{name} = 8"))?;
    input.parse::<Token![=]>()?;
    Ok((name, input.parse()?))
}

fn when_item(input: ParseStream) -> syn::Result<WhenItem> {
    if !input.peek2(Token![.]) {
        return tile_assignment(input).map(|(name, value)| WhenItem::Value(name, value));
    }
    at_most(input).map(WhenItem::AtMost)
}

fn at_most(input: ParseStream) -> syn::Result<AtMost> {
    let operand: Ident = input.parse()?;
    input.parse::<Token![.]>()?;
    let method: Ident = input.parse()?;
    if method != "dim" {
        return Err(syn::Error::new(method.span(), "a condition compares a dimension: `x.dim(0) <= 8`"));
    }
    let content;
    parenthesized!(content in input);
    let dim = content.parse()?;
    input.parse::<Token![<=]>()?;
    Ok(AtMost { operand, dim, max: input.parse()? })
}

fn dtypes_item(input: ParseStream) -> syn::Result<(Ident, Vec<Ident>)> {
    let generic: Ident = input.parse()?;
    value_follows(input, &generic, &format!("dtypes({generic} = [f32])"))?;
    input.parse::<Token![=]>()?;
    let content;
    syn::bracketed!(content in input);
    let list = content.parse_terminated(Ident::parse, Token![,])?;
    Ok((generic, list.into_iter().collect()))
}

/// The arguments of `#[param(...)]`.
#[derive(Default)]
pub struct ParamAttr {
    /// `default = value`.
    pub default: Option<Expr>,
    /// `choices("a", "b")`.
    pub choices: Vec<LitStr>,
}

impl ParamAttr {
    /// Parses the attribute.
    pub fn parse(cx: &Ctxt, attr: &syn::Attribute) -> ParamAttr {
        let mut param = ParamAttr::default();
        match &attr.meta {
            syn::Meta::Path(_) => {}
            syn::Meta::NameValue(_) => cx.error(attr, "write `#[param]` or `#[param(default = 1)]`"),
            syn::Meta::List(list) => {
                if let Some(items) = cx.ok(list.parse_args_with(Punctuated::<ParamItem, Token![,]>::parse_terminated)) {
                    for item in items {
                        match item {
                            ParamItem::Default(value) => param.default = Some(value),
                            ParamItem::Choices(choices) => param.choices = choices,
                        }
                    }
                }
            }
        }
        param
    }
}

enum ParamItem {
    Default(Expr),
    Choices(Vec<LitStr>),
}

impl Parse for ParamItem {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let key = Ident::parse_any(input)?;
        match key.to_string().as_str() {
            "default" => {
                value_follows(input, &key, "default = 1")?;
                input.parse::<Token![=]>()?;
                Ok(ParamItem::Default(input.parse()?))
            }
            "choices" => {
                let choices = list(input, &key, "choices(\"none\", \"tanh\")", <LitStr as Parse>::parse)?;
                if choices.is_empty() {
                    return Err(syn::Error::new(key.span(), "`choices` needs at least one string"));
                }
                Ok(ParamItem::Choices(choices))
            }
            other => Err(syn::Error::new(
                key.span(),
                format!("`#[param]` has no argument `{other}`: there are {}", PARAM_KEYS.join(" and ")),
            )),
        }
    }
}
