//! Which module may import which: the arrows of ARCHITECTURE.md, held.
//!
//! The test reads the sources of this crate and resolves every path of code that is not a test's: `use` items, paths that
//! start at `crate`, `super` or `self`, and paths that start at a module in scope. It follows re-exports to the module that
//! defines the item, so a facade (`kernel::BoundKernel`) hides no arrow. Calls of methods import nothing and are not seen, nor
//! is what macros of other crates print.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

/// The modules of one folder, each with the neighbours that it may import. Rows stand in order: a row names only modules
/// of rows above it, so there are no circles. `mod` is what the folder's own file defines; its re-exports are free.
struct Folder {
    path: &'static str,
    rows: &'static [(&'static str, &'static str)],
}

/// The arrows that there may be, and are: between the top modules, between those of `kernel`, and between the files of the
/// others. A row that names more than is imported is a mistake too.
const FOLDERS: &[Folder] = &[
    Folder {
        path: "",
        rows: &[
            ("steps", ""),
            ("hash_map", ""),
            ("dtype", ""),
            ("driver", "dtype"),
            ("kernel", "steps hash_map dtype driver"),
            ("graph", "steps dtype driver kernel"),
            ("plan", "hash_map dtype driver kernel graph"),
            ("compiler", "steps hash_map dtype driver kernel graph plan"),
            ("engine", "dtype driver kernel graph plan compiler"),
            ("error", "dtype driver kernel graph plan"),
        ],
    },
    Folder {
        path: "kernel",
        rows: &[
            ("abi", ""),
            ("arg", ""),
            ("cpu_caches", ""),
            ("tuning", "cpu_caches"),
            ("threads", "tuning"),
            ("error", "abi"),
            ("ir", "abi"),
            ("mod", "abi"),
            ("cpu_features", "abi error"),
            ("lang", "abi ir"),
            ("library", "abi error mod"),
            ("ptx", "abi ir"),
            ("cpu", "abi threads tuning ir cpu_features lang"),
            ("record", "abi ir lang"),
            ("copy", "arg threads tuning cpu"),
            ("reference", "abi ir lang cpu"),
            ("__private", "lang cpu record reference"),
            ("launch", "abi arg threads tuning error ir cpu_features ptx cpu record"),
            ("gpu", "abi arg error ir ptx launch"),
        ],
    },
    Folder {
        path: "kernel/launch",
        rows: &[
            ("fusion", ""),
            ("packing", ""),
            ("stack", ""),
            ("bound", "packing stack"),
            ("mod", "fusion packing stack bound"),
        ],
    },
    Folder { path: "kernel/library", rows: &[("extension", ""), ("mod", "extension")] },
    Folder {
        path: "kernel/threads",
        rows: &[
            ("cost", ""),
            ("wake", ""),
            ("sync", "wake"),
            ("ranges", "sync"),
            ("team", "sync wake"),
            ("mod", "ranges team wake"),
        ],
    },
    Folder {
        path: "graph",
        rows: &[
            ("promotion", ""),
            ("symbolic", ""),
            ("parameters", "symbolic"),
            ("types", "symbolic"),
            ("signature", "parameters types"),
            ("quantization", ""),
            ("weights", "quantization symbolic types"),
            ("error", "symbolic types signature weights"),
            ("node", "parameters symbolic types error"),
            ("substitute", "parameters symbolic types node"),
            ("value", "symbolic types error node"),
            ("builder", "parameters promotion symbolic types signature error node value"),
            ("serialization", "parameters symbolic types weights error node substitute value builder"),
            ("ops", "parameters symbolic types signature quantization substitute weights error node value builder"),
            ("operators", "value builder ops"),
        ],
    },
    Folder {
        path: "graph/builder",
        rows: &[("region", ""), ("site", ""), ("optional_operands", "site"), ("mod", "site")],
    },
    Folder {
        path: "graph/serialization",
        rows: &[("dot", ""), ("text", ""), ("verify", ""), ("parse", "text verify"), ("file", "text parse")],
    },
    Folder {
        path: "graph/symbolic",
        rows: &[("polynomial", ""), ("dim", "polynomial"), ("shape", "dim"), ("bind", "polynomial dim shape")],
    },
    Folder {
        path: "graph/weights/archive",
        rows: &[
            ("gguf_convert", ""),
            ("json", ""),
            ("header", "gguf_convert json"),
            ("index", "header json"),
            ("mod", "gguf_convert header index"),
        ],
    },
    Folder {
        path: "plan",
        rows: &[
            ("error", ""),
            ("fusion", ""),
            ("metadata", ""),
            ("sizes", "error"),
            ("shape_classes", "sizes"),
            ("mod", "error fusion metadata shape_classes sizes"),
        ],
    },
    Folder {
        path: "compiler",
        rows: &[
            ("context", ""),
            ("inline", "context"),
            ("view", ""),
            ("partition", "view"),
            ("schedule", "view"),
            ("weights", "context"),
            ("lower", "context view partition schedule"),
            ("destinations", "view schedule lower"),
            ("memory", "schedule"),
            ("passes", "context view partition schedule"),
            ("explain", "schedule passes"),
            ("mod", "context inline schedule weights lower memory passes"),
        ],
    },
    Folder {
        path: "compiler/passes",
        rows: &[
            ("elementwise_fusion", ""),
            ("flatten", ""),
            ("rewrite", ""),
            ("cse", "rewrite"),
            ("dce", "rewrite"),
            ("composites", "rewrite dce"),
            ("merge_matmul", "rewrite dce"),
            ("hoist", "elementwise_fusion rewrite"),
            ("epilogue_fusion", "elementwise_fusion"),
            ("fold", "rewrite"),
            ("fusion", "elementwise_fusion epilogue_fusion"),
        ],
    },
    Folder {
        path: "engine",
        rows: &[
            ("affinity", ""),
            ("fusion", ""),
            ("inputs", ""),
            ("limits", ""),
            ("pack", ""),
            ("profile", ""),
            ("profiling", ""),
            ("execution", "inputs limits profile"),
            ("model", "inputs limits profile execution"),
            ("session", "affinity profiling model"),
        ],
    },
    Folder {
        path: "engine/execution",
        rows: &[
            ("run", ""),
            ("frame", "run"),
            ("checks", "frame"),
            ("control", "run frame"),
            ("execute", "run frame"),
            ("capture", "run execute"),
        ],
    },
    Folder { path: "engine/fusion", rows: &[("fused_elementwise", ""), ("fused_kernel", "fused_elementwise")] },
    Folder {
        path: "driver",
        rows: &[
            ("cuda_error", ""),
            ("device_ref", ""),
            ("launch_journal", ""),
            ("slice", ""),
            ("tensor_map_stats", ""),
            ("error", "cuda_error device_ref launch_journal"),
            ("backend", "launch_journal tensor_map_stats error"),
            ("allocator", "device_ref error backend"),
            ("cuda", "cuda_error device_ref launch_journal tensor_map_stats error backend"),
            ("host", "error backend"),
            ("device", "cuda_error device_ref tensor_map_stats error backend allocator cuda host"),
            ("tensor", "slice error backend allocator device"),
        ],
    },
    Folder {
        path: "driver/tensor",
        rows: &[
            ("layout", ""),
            ("storage", ""),
            ("mod", "layout storage"),
            ("arrays", "mod"),
            ("create", "layout storage mod"),
            ("data", "layout mod"),
            ("display", "mod"),
            ("mmap", "layout storage mod"),
            ("transfer", "layout mod create"),
            ("views", "layout mod"),
        ],
    },
    Folder {
        path: "driver/cuda",
        rows: &[
            ("sys", ""),
            ("map_counts", ""),
            ("pinned", ""),
            ("api", "sys"),
            ("device", "sys map_counts pinned api"),
            ("upload", "pinned device"),
            ("tensor_map", "sys device"),
            ("module", "sys api device"),
            ("stream", "sys device"),
            ("gpu", "sys api pinned device module"),
        ],
    },
];

/// A path in a source file: where it stands, and its segments.
struct Import {
    line: usize,
    /// The module that it is read in: that of the file, or an inline one.
    scope: Vec<String>,
    segments: Vec<String>,
    /// The name that a `use` gives it; none for a path in code.
    name: Option<String>,
    /// Whether it is a `pub use`.
    exported: bool,
}

/// A source file, with comments, literals and tests blanked out.
struct Source {
    file: String,
    module: Vec<String>,
    /// The names of its items, and of its macros.
    items: HashSet<String>,
    macros: HashSet<String>,
    imports: Vec<Import>,
}

fn blank(text: &mut [u8], range: std::ops::Range<usize>) {
    text[range].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The text without comments and without what stands in literals.
fn without_comments_and_literals(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let raw = !(at > 0 && is_word(bytes[at - 1])) && (rest.starts_with(b"r\"") || rest.starts_with(b"r#"));
        let end = if rest.starts_with(b"//") {
            at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at + text[at..].find("*/").map_or(rest.len(), |n| n + 2)
        } else if raw && rest[1..].iter().find(|b| **b != b'#') == Some(&b'"') {
            let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
            let close = format!("\"{}", "#".repeat(hashes));
            let start = at + 2 + hashes;
            start + text[start..].find(&close).map_or(0, |n| n + close.len())
        } else if rest[0] == b'"' {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            end + 1
        } else if rest.starts_with(b"'\\") {
            at + 3 + rest[3..].iter().position(|b| *b == b'\'').map_or(0, |n| n + 1)
        } else if rest[0] == b'\'' && text[at + 1..].chars().nth(1) == Some('\'') {
            at + 2 + text[at + 1..].chars().next().map_or(0, char::len_utf8)
        } else {
            at += 1;
            continue;
        };
        let end = end.min(bytes.len());
        blank(&mut bytes, at..end);
        at = end.max(at + 1);
    }
    bytes
}

/// Where the bracket that opens at `open` closes.
fn closing(text: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in text.iter().enumerate().skip(open) {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len() - 1
}

/// Blanks out items that only tests have. Returns the modules among them that have a file of their own.
fn remove_tests(text: &mut [u8]) -> Vec<String> {
    let mut files = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test"] {
        while let Some(start) = find(text, mark, 0) {
            let mut end = closing(text, start + 1) + 1;
            while let Some(next) = (end..text.len()).find(|at| !text[*at].is_ascii_whitespace())
                && text[next] == b'#'
            {
                end = closing(text, next + 1) + 1;
            }
            let stop = (end..text.len()).find(|at| matches!(text[*at], b';' | b'{')).unwrap_or(text.len() - 1);
            let item = String::from_utf8_lossy(&text[end..stop]).trim().to_string();
            if text[stop] == b';'
                && let Some(name) = item.strip_prefix("mod ")
            {
                files.push(name.trim().to_string());
            }
            let last = if text[stop] == b'{' { closing(text, stop) } else { stop };
            blank(text, start..last + 1);
        }
    }
    files
}

fn find(text: &[u8], what: &str, from: usize) -> Option<usize> {
    text[from..].windows(what.len()).position(|window| window == what.as_bytes()).map(|at| from + at)
}

/// The parts of a `use` tree: full paths, and the names they are given.
fn tree(text: &str, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let text = text.trim();
    let mut path = before.to_vec();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if let Some(group) = rest.strip_prefix('{') {
            let group = &group[..group.rfind('}').unwrap_or(group.len())];
            let (mut depth, mut start) = (0, 0);
            for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        if !group[start..at].trim().is_empty() {
                            tree(&group[start..at], &path, found);
                        }
                        start = (at + 1).min(group.len());
                    }
                    _ => {}
                }
            }
            return;
        }
        let end = rest.find("::").unwrap_or(rest.len());
        let part = rest[..end].trim();
        if end < rest.len() {
            path.push(part.to_string());
            rest = &rest[end + 2..];
            continue;
        }
        let (part, alias) = part.split_once(" as ").map_or((part, None), |(part, alias)| (part, Some(alias.trim())));
        if part.trim() != "self" {
            path.push(part.trim().to_string());
        }
        let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_string);
        found.push((path, name));
        return;
    }
}

/// The names behind one of these words.
fn names_after(text: &str, kinds: &[&str]) -> HashSet<String> {
    let words: Vec<&str> = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!')).collect();
    let named = words.split(|word| word.is_empty()).flatten().copied().collect::<Vec<&str>>();
    named.windows(2).filter(|pair| kinds.contains(&pair[0])).map(|pair| pair[1].to_string()).collect()
}

/// The module that each byte of a file is in: inline modules are ones of their own.
fn scope_at(inline: &[(usize, usize, String)], module: &[String], at: usize) -> Vec<String> {
    let inner = inline.iter().filter(|(start, end, _)| *start < at && at < *end).map(|(.., name)| name.clone());
    module.iter().cloned().chain(inner).collect()
}

fn imports(text: &[u8], module: &[String]) -> Vec<Import> {
    let breaks: Vec<usize> = (0..text.len()).filter(|at| text[*at] == b'\n').collect();
    let line = |at: usize| breaks.partition_point(|end| *end < at) + 1;
    let words: Vec<(usize, usize)> = {
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end = (at..text.len()).find(|i| !is_word(text[*i])).unwrap_or(text.len());
            if end > at {
                words.push((at, end));
            }
            at = end.max(at) + 1;
        }
        words
    };
    let word = |(start, end): (usize, usize)| std::str::from_utf8(&text[start..end]).unwrap_or_default();
    let mut inline = Vec::new();
    for pair in words.windows(2) {
        let next = (pair[1].1..text.len()).find(|at| !text[*at].is_ascii_whitespace());
        if word(pair[0]) == "mod" && next.is_some_and(|at| text[at] == b'{') {
            let open = next.unwrap_or_default();
            inline.push((open, closing(text, open), word(pair[1]).to_string()));
        }
    }
    let mut found = Vec::new();
    let mut skip = 0;
    for (i, (start, end)) in words.iter().copied().enumerate() {
        if start < skip {
            continue;
        }
        let scope = scope_at(&inline, module, start);
        // (`use<…>` is a bound of an `impl Trait`.)
        if word((start, end)) == "use" && text.get(end) != Some(&b'<') {
            let stop = (end..text.len()).find(|at| text[*at] == b';').unwrap_or(text.len());
            let item = text[..start].iter().rposition(|byte| matches!(byte, b';' | b'{' | b'}')).map_or(0, |at| at + 1);
            let exported = find(&text[item..start], "pub", 0).is_some();
            let mut parts = Vec::new();
            tree(&String::from_utf8_lossy(&text[end..stop]), &[], &mut parts);
            for (segments, name) in parts {
                found.push(Import { line: line(start), scope: scope.clone(), segments, name: Some(name), exported });
            }
            skip = stop;
            continue;
        }
        // A path in code: it starts where no `::` stands before it. That of a visibility is none.
        let before = &text[..start];
        let begins = !before.ends_with(b"::") && !before.ends_with(b".") && !before.ends_with(b"pub(in ");
        if begins && text[end..].starts_with(b"::") {
            let mut segments = vec![word((start, end)).to_string()];
            let mut last = end;
            for next in &words[i + 1..] {
                if next.0 != last + 2 || &text[last..next.0] != b"::" {
                    break;
                }
                segments.push(word(*next).to_string());
                last = next.1;
            }
            found.push(Import { line: line(start), scope, segments, name: None, exported: false });
        }
    }
    found
}

/// A source file, by its path below `src`, and the modules of tests that it declares.
fn source(path: &Path, text: &str) -> (Source, Vec<Vec<String>>) {
    let inner = path.with_extension("");
    let mut module: Vec<String> = inner.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|name| name == "mod" || name == "lib") {
        module.pop();
    }
    let mut text = without_comments_and_literals(text);
    let tests = remove_tests(&mut text).into_iter().map(|name| [module.clone(), vec![name]].concat()).collect();
    let imports = imports(&text, &module);
    let text = String::from_utf8_lossy(&text);
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
    let (items, macros) = (names_after(&text, &kinds), names_after(&text, &["macro_rules!"]));
    (Source { file: format!("src/{}", path.display()), module, items, macros, imports }, tests)
}

fn without_tests(mut sources: Vec<Source>, tests: &[Vec<String>]) -> Vec<Source> {
    sources.retain(|source| !tests.iter().any(|test| source.module.starts_with(test)));
    sources
}

/// The crate's sources, without its tests.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let (mut folders, mut found, mut tests) = (vec![root.clone()], Vec::new(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let (source, own) = source(path.strip_prefix(&root).unwrap(), &fs::read_to_string(&path).unwrap());
                found.push(source);
                tests.extend(own);
            }
        }
    }
    without_tests(found, &tests)
}

/// What modules define and what they import, to follow paths.
struct Crate<'a> {
    modules: HashMap<Vec<String>, &'a Source>,
    /// The names that a module's `use` items bring into its scope.
    names: HashMap<(Vec<String>, String), Vec<String>>,
    /// The modules whose names a module has by `use …::*`.
    globs: HashMap<Vec<String>, Vec<Vec<String>>>,
}

impl<'a> Crate<'a> {
    fn new(sources: &'a [Source]) -> Crate<'a> {
        let modules = sources.iter().map(|source| (source.module.clone(), source)).collect();
        let mut names = HashMap::new();
        let mut globs: HashMap<_, Vec<Vec<String>>> = HashMap::new();
        for import in sources.iter().flat_map(|source| &source.imports) {
            match import.name.as_deref() {
                Some("*") => {
                    let path = import.segments[..import.segments.len() - 1].to_vec();
                    globs.entry(import.scope.clone()).or_default().push(path);
                }
                Some(name) => {
                    names.insert((import.scope.clone(), name.to_string()), import.segments.clone());
                }
                None => {}
            }
        }
        Crate { modules, names, globs }
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        self.modules.get(module).is_some_and(|source| source.items.contains(name))
    }

    /// The module that defines what a path names; none for other crates' and for local names.
    fn resolve(&self, scope: &[String], segments: &[String], depth: usize) -> Option<Vec<String>> {
        let (first, rest) = segments.split_first()?;
        if depth > 12 {
            return None;
        }
        match first.as_str() {
            "crate" | "max" => self.descend(&[], rest, depth),
            "self" => self.descend(scope, rest, depth),
            "super" => self.descend_up(&scope[..scope.len().checked_sub(1)?], rest, depth),
            name => {
                let child = [scope, &[name.to_string()]].concat();
                if self.modules.contains_key(&child) {
                    return self.descend(&child, rest, depth);
                }
                let bound = self.names.get(&(scope.to_vec(), name.to_string()))?;
                if bound.first() == Some(first) {
                    return None;
                }
                self.resolve(scope, &[bound.as_slice(), rest].concat(), depth + 1)
            }
        }
    }

    fn descend_up(&self, module: &[String], rest: &[String], depth: usize) -> Option<Vec<String>> {
        match rest.first().map(String::as_str) {
            Some("super") => self.descend_up(&module[..module.len().checked_sub(1)?], &rest[1..], depth),
            _ => self.descend(module, rest, depth),
        }
    }

    fn descend(&self, module: &[String], rest: &[String], depth: usize) -> Option<Vec<String>> {
        let Some((first, rest)) = rest.split_first() else { return Some(module.to_vec()) };
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.descend(&child, rest, depth);
        }
        if let Some(bound) = self.names.get(&(module.to_vec(), first.clone())) {
            let path = [bound.as_slice(), rest].concat();
            return Some(self.resolve(module, &path, depth + 1).unwrap_or_else(|| module.to_vec()));
        }
        if self.defines(module, first) {
            return Some(module.to_vec());
        }
        for glob in self.globs.get(module).into_iter().flatten() {
            let target = self.resolve(module, glob, depth + 1);
            if let Some(target) = target
                && target != module
                && depth < 6
                && (self.defines(&target, first)
                    || self.names.contains_key(&(target.clone(), first.clone()))
                    || self.modules.contains_key(&[target.clone(), vec![first.clone()]].concat()))
            {
                return self.descend(&target, &[std::slice::from_ref(first), rest].concat(), depth + 1);
            }
        }
        // A macro that is exported stands at the root.
        if module.is_empty() {
            return self.modules.iter().find(|(_, owner)| owner.macros.contains(first)).map(|(owner, _)| owner.clone());
        }
        Some(module.to_vec())
    }
}

/// The row of a folder that a module belongs to.
fn row(folder: &[String], module: &[String]) -> Option<String> {
    let inner = module.strip_prefix(folder)?;
    Some(inner.first().cloned().unwrap_or_else(|| "mod".to_string()))
}

/// The arrows between the modules of a folder, from and to, each with the imports that make it.
fn arrows(sources: &[Source], folder: &[String]) -> BTreeMap<(String, String), BTreeSet<String>> {
    let known = Crate::new(sources);
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(from) = row(folder, &source.module) else { continue };
        for import in &source.imports {
            let path = import.segments.strip_suffix(&["*".to_string()]).unwrap_or(&import.segments);
            let Some(to) = known.resolve(&import.scope, path, 0).and_then(|to| row(folder, &to)) else { continue };
            // What a folder's own file re-exports is the folder's face, and no use.
            if to != from && !(from == "mod" && import.exported) {
                let place = format!("max-core/{}:{}: `{}`", source.file, import.line, import.segments.join("::"));
                found.entry((from.clone(), to)).or_default().insert(place);
            }
        }
    }
    found
}

/// What is wrong with a folder: arrows that are not allowed, or that nothing needs any more, and rows out of order.
fn mistakes(sources: &[Source], folder: &Folder) -> Vec<String> {
    let path: Vec<String> = folder.path.split('/').filter(|part| !part.is_empty()).map(str::to_string).collect();
    let (mut found, mut mistakes) = (arrows(sources, &path), Vec::new());
    let shown = if folder.path.is_empty() { "src" } else { folder.path };
    let mut above: BTreeSet<&str> = BTreeSet::new();
    for (from, allowed) in folder.rows {
        for to in allowed.split_whitespace() {
            if !above.contains(to) {
                mistakes.push(format!("{shown}: the row of `{from}` names `{to}`, which has no row above it"));
            }
            if found.remove(&(from.to_string(), to.to_string())).is_none() {
                mistakes.push(format!("{shown}: `{from}` imports nothing of `{to}` any more: take it off its row"));
            }
        }
        above.insert(from);
    }
    for ((from, to), places) in found {
        let places: Vec<String> = places.into_iter().collect();
        mistakes.push(format!("{shown}: `{from}` may not import `{to}`:\n    {}", places.join("\n    ")));
    }
    for module in sources.iter().filter_map(|source| row(&path, &source.module)).collect::<BTreeSet<_>>() {
        if module != "mod" && !above.contains(&*module) {
            mistakes.push(format!("{shown}: `{module}` has no row"));
        }
    }
    mistakes
}

#[test]
fn imports_point_down() {
    let sources = sources();
    assert!(sources.len() > 100, "found {} sources", sources.len());
    let mistakes: Vec<String> = FOLDERS.iter().flat_map(|folder| mistakes(&sources, folder)).collect();
    assert!(
        mistakes.is_empty(),
        "{}\nMove what both need to a module below both, or pass it in as an argument. If the arrow is right and points down, \
         add it to the row in max-core/tests/imports.rs.",
        mistakes.join("\n")
    );
}

/// A crate of these files, by path.
fn crate_of(files: &[(&str, &str)]) -> Vec<Source> {
    let source = |(file, text): &(&str, &str)| source(Path::new(file), text);
    let (found, tests): (Vec<Source>, Vec<Vec<Vec<String>>>) = files.iter().map(source).unzip();
    without_tests(found, &tests.concat())
}

#[test]
fn imports_are_found_wherever_they_stand() {
    let below = "pub struct Thing;\npub mod deep { pub struct Far; }\n";
    let found = |text: &str| {
        let files = [
            ("lib.rs", "mod above; mod below; mod face; mod side;"),
            ("above.rs", text),
            ("below.rs", below),
            ("face/mod.rs", "mod inner; pub use crate::below::Thing as Shown; pub use inner::*;"),
            ("face/inner.rs", "pub fn made() {}"),
            ("side.rs", "#[macro_export] macro_rules! exported { () => {} }"),
        ];
        let all = arrows(&crate_of(&files), &[]);
        let of_above = all.into_iter().filter(|((from, _), _)| from == "above");
        let line = |place: &String| place.split(':').nth(1).map(str::to_string);
        let lines = |places: BTreeSet<String>| places.iter().filter_map(line).collect::<BTreeSet<String>>();
        let shown = of_above.map(|((_, to), places)| (to, Vec::from_iter(lines(places)).join(" ")));
        shown.map(|(to, lines)| format!("{to} {lines}")).collect::<Vec<_>>()
    };
    assert_eq!(found("use crate::below::{self, deep::{Far}, Thing};"), ["below 1"]);
    assert_eq!(found("\nfn f(_: super::below::Thing) {}\nfn g() -> crate::face::made { }"), ["below 2", "face 3"]);
    // Through a facade, a rename, a glob, an inline module, and a macro of the crate.
    assert_eq!(found("use crate::face::Shown;\nmod inline {\n use super::super::side::x; }"), ["below 1", "side 3"]);
    assert_eq!(found("use crate::face as other;\nfn f() { other::made() }"), ["face 1 2"]);
    assert_eq!(found("fn f() { crate::exported!() }"), ["side 1"]);
    // Comments, text, tests and visibilities are none.
    let none = "// crate::below::Thing\n/* use crate::below; */ const A: &str = \"crate::below::Thing\";\n\
        const B: char = '\"'; const C: &str = r#\"crate::below\"#; pub(in crate::below) fn f<'a>(_: &'a u8) {}\n\
        #[cfg(test)]\n#[allow(unused)]\nmod tests { use crate::below::Thing; }";
    assert_eq!(found(none), Vec::<String>::new());
}

#[test]
fn a_wrong_arrow_is_named() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "\nuse crate::b::B;"),
        ("b.rs", "pub struct B; use crate::a::A;"),
        ("c.rs", ""),
    ];
    let rows = &[("a", ""), ("b", "a c")];
    let text = mistakes(&crate_of(&files), &Folder { path: "", rows }).join("\n");
    assert!(text.contains("src: `a` may not import `b`:\n    max-core/src/a.rs:2: `crate::b::B`"), "{text}");
    assert!(text.contains("the row of `b` names `c`, which has no row above it"), "{text}");
    assert!(text.contains("`b` imports nothing of `c` any more"), "{text}");
    assert!(text.contains("src: `c` has no row"), "{text}");
    assert!(!text.contains("`b` may not import `a`"), "{text}");
}
