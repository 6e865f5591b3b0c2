//! What kernels expand to, and what is reported, without a compiler run. How messages look to an author is tested by
//! the workspace's UI tests, what expansions compute by the kernel language's tests.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing)]

use quote::quote;

use super::*;

/// The messages of all errors.
fn errors(attr: TokenStream, item: TokenStream) -> Vec<String> {
    let file = syn::parse2::<syn::File>(kernel_tokens(attr, item)).unwrap();
    let messages = file.items.iter().filter_map(|item| match item {
        syn::Item::Macro(mac) if mac.mac.path.segments.last().is_some_and(|s| s.ident == "compile_error") => {
            Some(mac.mac.parse_body::<syn::LitStr>().unwrap().value())
        }
        _ => None,
    });
    messages.collect()
}

/// The printed body of a helper with these arguments, without the path of the runtime.
fn body(signature: &str, statements: &str) -> String {
    let item: TokenStream = format!("fn f{signature} {{ {statements} }}").parse().unwrap();
    let out = kernel_tokens(TokenStream::new(), item);
    let function: ItemFn = syn::parse2(out.clone()).unwrap_or_else(|_| panic!("{out}"));
    let stmts = &function.block.stmts[1..];
    let text = quote!(#(#stmts)*).to_string();
    let text = text.replace(":: max :: kernel :: __private :: ", "").replace(":: core :: primitive :: ", "");
    text.replace("# [inline (always)] ", "").replace(" :: < Machine , _ >", "")
}

/// Without white space, which tokens print in ways of their own.
fn dense(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[track_caller]
fn check_body(signature: &str, statements: &str, expected: &str) {
    assert_eq!(dense(&body(signature, statements)), dense(expected));
}

#[test]
fn literals_take_the_type_of_what_they_meet() {
    check_body("(x: f32) -> f32", "x * 2.0", "x * float(2.0)");
    check_body("(x: f32) -> f32", "2 * x", "({ let __right = x; int_like(2, &__right) * __right })");
    check_body("(x: f32) -> f32", "let c = 0.5; x + c", "x + float(0.5)");
    check_body(
        "(x: f32) -> f32",
        "-2.0 * 3.0 - x",
        "({ let __right = x; float_like(((-2.0) * 3.0), &__right) - __right })",
    );
    check_body("(x: f64) -> f64", "x + 1_f64", "x + float::<Machine, f64>(1.0)");
    check_body("(x: f64) -> f64", "x * PI", "x * constant(PI)");
    check_body("(x: i64) -> i64", "x + 0xff_i64", "x + int::<Machine, i64>(255)");
}

#[test]
fn operators_keep_the_authors_binding() {
    check_body("(a: bool, b: bool, c: bool) -> bool", "a && b | c", "a & (b | c)");
    check_body("(a: bool, b: bool) -> bool", "!(a || b)", "!(a | b)");
    check_body("(a: i32, b: i32) -> bool", "a < b", "lt::<Machine, _, _>(a, b)");
    check_body(
        "(a: i32) -> bool",
        "0 < a",
        "({ let __right = a; lt::<Machine, _, _>(int_like(0, &__right), __right) })",
    );
    check_body("(a: i32) -> f32", "(a + 1) as f32", "(a + int(1)).cast::<f32>()");
    check_body("<T: Float>(a: i64) -> T", "T::from_i64(a)", "a.convert::<T>()");
    check_body("<T: Float>() -> T", "0.5 as T", "float::<Machine, T>(0.5)");
    check_body("<T: Number>() -> T", "T::from_f64(0.5)", "float::<Machine, f64>(0.5).cast::<T>()");
}

#[test]
fn variables_are_read_and_assigned() {
    check_body(
        "(x: f32) -> f32",
        "let mut y = x; y += 1.0; y = y * y; y",
        "let y = var(x); y.assign(y.get() + float(1.0)); y.assign(y.get() * y.get()); y.get()",
    );
    check_body(
        "(mut x: f32) -> f32",
        "let y: f32 = x; x = y; x",
        "let x = var(x); let y: Val<Machine, f32> = x.get(); x.assign(y); x.get()",
    );
    // A shadowing name is another variable.
    check_body(
        "(x: f32) -> f32",
        "let mut y = x; let z = { let y = 1.0; x + y }; z + y",
        "let y = var(x); let z = ({ x + float(1.0) }); z + y.get()",
    );
}

#[test]
fn branches_of_lanes_are_selected() {
    check_body(
        "(x: f32) -> f32",
        "if x > 0.0 { x } else { 0.0 }",
        "if_pure(gt::<Machine, _, _>(x, float(0.0)), { x }, { float(0.0) })",
    );
    check_body(
        "(x: f32) -> f32",
        "let mut y = x; if x > 0.0 { y = 1.0; } y",
        "let y = var(x); if_(__m, gt::<Machine, _, _>(x, float(0.0)), || { y.assign(float(1.0)); }, || {}); y.get()",
    );
    // A program's branches are branches.
    check_body("(x: In<f32, 1>, c: bool) -> f32", "if c { x.sum() } else { 0.0 }", {
        "if_(__m, c, || { x.sum() }, || { float(0.0) })"
    });
}

#[test]
fn conditions_of_tile_constants_are_decided_by_the_compiler() {
    let decided = |condition: &str| {
        let body = "y.row(program_id(0)).write(x.row(program_id(0)).map(|e| e * v));";
        let item = format!(
            "fn k(y: Out<f32, 2>, x: In<f32, 2>) {{ let v = if {condition} {{ 1.0 }} else {{ 2.0 }}; {body} }}"
        );
        let text = dense(&kernel_tokens(quote!(op = "k", tile(A = 4, B = 2)), item.parse().unwrap()).to_string());
        let mut conditions = text.split("ifconst{").skip(1).map(|rest| rest[..rest.find('}').unwrap()].to_owned());
        let is_compiled = "::max::kernel::__private::has_tile_sizes::<Machine>()";
        let first = conditions.next().map(|first| first.replace(is_compiled, "compiled"));
        (first, conditions.next().is_some())
    };
    let whole = "compiled&&(((Aasi128)>1)&((((Basi128)+1)<=(Aasi128))|((Aasi128)==(Basi128))))";
    assert_eq!(decided("A > 1 && (B + 1 <= A || A == B)"), (Some(whole.to_owned()), true));
    // The right side is decided by each program.
    let left = "compiled&&!((Aasi128)>1)";
    assert_eq!(decided("A > 1 && x.dim(0) < B"), (Some(left.to_owned()), false));
    assert_eq!(decided("A > 1 && x.dim(0) < B && x.dim(1) < 3"), (Some(left.to_owned()), false));
    assert_eq!(decided("x.dim(0) < A && A > 1"), (None, false));
    assert_eq!(decided("x.dim(0) < A"), (None, false));
    assert_eq!(decided("1 < 2"), (None, false), "no tile constant");
    // Branches stand once, however long a chain is.
    let chain = |links: usize| {
        let chain = "if A > 1 { t = t + 1.0; } else ".repeat(links);
        let item = format!(
            "fn k(y: Out<f32, 1>, x: In<f32, 1>) {{ let mut t = 0.0f32; {chain} {{ t = t + 2.0; }} y.set(program_id(0), t); }}"
        );
        kernel_tokens(quote!(op = "k", tile(A = 4), grid(x.dim(0))), item.parse().unwrap()).to_string().len()
    };
    assert!(chain(12) < 2 * chain(6), "{} {}", chain(6), chain(12));
}

#[test]
fn loops_and_calls_get_the_machine() {
    check_body(
        "(n: i64) -> i64",
        "let mut s = 0; for i in 0..n { s += g(i); } while s > 9 { s /= 2; } s",
        "let s = var(int(0));
         for_range(__m, int::<Machine, i64>(0), n, int::<Machine, i64>(1), |i| { s.assign(s.get() + g(OnlyForKernelFunctions(__m), i)); });
         while_(__m, || gt::<Machine, _, _>(s.get(), int(9)), || { s.assign(s.get() / int(2)); });
         s.get()",
    );
    check_body("(x: f32) -> f32", "a::g::<f32, 4>(x)", "a::g::<Machine, f32, 4>(OnlyForKernelFunctions(__m), x)");
    check_body("(x: In<f32, 3>, i: i64) -> f32", "x.at([i, 0, x.dim(2)])", {
        "x.at([Index::<Machine>::index(i), int::<Machine, i64>(0), Index::<Machine>::index(x.dim::<2>())])"
    });
}

#[test]
fn several_errors_are_reported_at_once() {
    let found = errors(
        quote!(op = "k", tile(BM)),
        quote! {
            async fn k<T: Foo>(x: T, y: usize) -> f32 {
                return 1.0;
            }
        },
    );
    assert!(found.len() >= 4, "{found:#?}");
    assert!(found.iter().any(|m| m.contains("`return`")), "{found:#?}");
    assert!(found.iter().any(|m| m.contains("`usize`")), "{found:#?}");
}

#[test]
fn after_an_error_the_item_is_still_there() {
    let names = |attr, item| {
        let file = syn::parse2::<syn::File>(kernel_tokens(attr, item)).unwrap();
        file.items.iter().filter(|i| matches!(i, syn::Item::Fn(_) | syn::Item::Use(_) | syn::Item::Enum(_))).count()
    };
    assert_eq!(
        names(
            quote!(op = "k"),
            quote!(
                fn k(x: usize) -> f32 {
                    1.0
                }
            )
        ),
        2
    );
    assert_eq!(
        names(
            quote!(op = "k"),
            quote!(
                fn k(x: f32) -> f32 {
                    return x;
                }
            )
        ),
        1
    );
    assert_eq!(
        names(
            quote!(),
            quote!(
                fn k(x: f32) -> f32 {
                    loop {}
                }
            )
        ),
        1
    );
}

/// Drops, doubles and swaps tokens of valid kernels: whatever comes in, nothing panics, and what comes out of a function
/// that parses is valid Rust.
#[test]
fn no_input_makes_the_attribute_panic() {
    let sources = [
        "fn k<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param(default = 1)] n: i64) {
            let [r, c] = program_id(); let mut a = Tile::<f32, 8, BM>::zeros();
            for k in range(0, x.dim(1), BM) { a = dot(x.tile::<8, BM>(r, k), x.tile::<BM, 8>(k, c), a * 2.0); }
            if n > 1 { y.tile::<8, BM>(r, c).write(a.cast()); } else { y.tile::<8, BM>(r, c).write(-a); } }",
        "fn k<T: Number>(mut x: T, y: &mut f32, #[param(choices(\"a\"))] m: &str) -> (T, bool) {
            let (mut a, b) = (x as f32, 1 << 2); while a < 1.0 && m == \"a\" { a += T::MAX as f32; (a, _) = (b, a); }
            *y += a; (if true { T::from_i64(3) } else { x }, !(a != 2.0)) }",
    ];
    for source in sources {
        let tokens: Vec<proc_macro2::TokenTree> = source.parse::<TokenStream>().unwrap().into_iter().collect();
        let flat = flatten(&tokens);
        for i in 0..flat {
            for edit in 0..3 {
                let mut at = i;
                let edited = mutate(&tokens, &mut at, edit);
                let attr: TokenStream = "op = \"k\", tile(BM = 8, gpu(BM = 64))".parse().unwrap();
                let out = kernel_tokens(attr, edited.clone());
                if syn::parse2::<ItemFn>(edited.clone()).is_ok() {
                    assert!(syn::parse2::<syn::File>(out.clone()).is_ok(), "{edited}\n=> {out}");
                }
            }
        }
    }
}

fn flatten(tokens: &[proc_macro2::TokenTree]) -> usize {
    let inner = |t: &proc_macro2::TokenTree| match t {
        proc_macro2::TokenTree::Group(g) => flatten(&g.stream().into_iter().collect::<Vec<_>>()),
        _ => 0,
    };
    tokens.iter().map(|t| 1 + inner(t)).sum()
}

/// The tokens with the one of index `at` left out, doubled, or moved after the next one.
fn mutate(tokens: &[proc_macro2::TokenTree], at: &mut usize, edit: usize) -> TokenStream {
    let mut out = Vec::new();
    let mut held = None;
    for token in tokens {
        let here = *at == 0;
        *at = at.wrapping_sub(1);
        let token = match token {
            proc_macro2::TokenTree::Group(g) if *at < usize::MAX / 2 => {
                let inner = mutate(&g.stream().into_iter().collect::<Vec<_>>(), at, edit);
                proc_macro2::Group::new(g.delimiter(), inner).into()
            }
            other => other.clone(),
        };
        match (here, edit) {
            (true, 0) => {}
            (true, 1) => out.extend([token.clone(), token]),
            (true, _) => held = Some(token),
            (false, _) => out.extend([Some(token), held.take()].into_iter().flatten()),
        }
    }
    out.extend(held);
    out.into_iter().collect()
}

#[test]
fn numbers_that_meet_only_numbers_have_a_dtype() {
    check_body(
        "(x: f32) -> f32",
        "let mut i = 0; while i < 3 { i += 1; } x",
        "let i = var(int::<Machine, i64>(0));
         while_(__m, || lt::<Machine, _, _>(i.get(), int::<Machine, i64>(3)), || { i.assign(i.get() + int::<Machine, i64>(1)); });
         x",
    );
    // Here the result decides.
    check_body(
        "(x: i32) -> i32",
        "let mut i = 0; while i < 3 { i += 1; } i",
        "let i = var(int(0)); while_(__m, || lt::<Machine, _, _>(i.get(), int(3)), || { i.assign(i.get() + int(1)); }); i.get()",
    );
    check_body(
        "(c: bool) -> f64",
        "let unit = if c { 1 } else { 0.5 }; unit as f64",
        "let unit = if_pure(c, { int::<Machine, f32>(1) }, { float::<Machine, f32>(0.5) }); unit.cast::<f64>()",
    );
    check_body("(x: f32) -> f32", "let (mut a, b) = (0, 1); a = b; x", {
        "let (a, b,) = (int::<Machine, i64>(0), int::<Machine, i64>(1),); let a = var(a); a.assign(b); x"
    });
    check_body(
        "(x: i32) -> i32",
        "let mut a = 0; g(a); x",
        "let a = var(int(0)); g(OnlyForKernelFunctions(__m), a.get()); x",
    );
    check_body("(x: i32) -> i32", "let mut a = 0; a = x.max(1); a = a.max(2); x", {
        "let a = var(int(0)); a.assign(x.max(int(1))); a.assign(a.get().max(int(2))); x"
    });
}

/// The statements of a kernel's form for columns.
fn columns(statements: &str) -> Option<String> {
    let item: TokenStream =
        format!("fn k<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param] c: f32) {{ {statements} }}").parse().unwrap();
    let file: syn::File = syn::parse2(kernel_tokens(quote!(op = "k",), item)).unwrap();
    let module = file.items.into_iter().find_map(|item| match item {
        syn::Item::Mod(module) if module.ident == "__columns_of_k" => module.content,
        _ => None,
    });
    let function = module?.1.into_iter().find_map(|item| match item {
        syn::Item::Fn(function) if function.sig.ident == "k" => Some(function),
        _ => None,
    });
    // The first statement imports traits.
    let stmts = &function?.block.stmts[1..];
    let text = quote!(#(#stmts)*).to_string().replace(":: max :: kernel :: __private :: ", "");
    Some(dense(&text.replace("# [inline (always)] ", "").replace(" :: < Machine , _ >", "")))
}

#[track_caller]
fn check_columns(statements: &str, expected: &[&str]) {
    let text = columns(&format!("let row = program_id(0); let x = x.row(row); {statements}"));
    let text = text.unwrap_or_else(|| panic!("`{statements}` has no form for columns"));
    for part in expected {
        assert!(text.contains(&dense(part)), "no `{part}` in {text}");
    }
}

#[test]
fn rows_become_columns() {
    check_columns(
        "y.row(row).set(0, x.sum());",
        &["let __matrix = x.select(__outer);", "__matrix.columns::<__COLUMNS>(__strip).sum()", ".write(__sequence"],
    );
    // Numbers of the row are zipped in where closures capture them; others are captured.
    check_columns(
        "let m = x.max() * c; y.row(row).write(x.map(|v| v - m));",
        &["__matrix.columns::<__COLUMNS>(__strip).zip(__sequence", "* c; __m_", ".map(|(__v_"],
    );
    // One sequence has both numbers, and what is not needed has no name.
    check_columns(
        "let (mean, v) = x.mean_variance(); let s = v.rsqrt(); y.row(row).write(x.map(|e| e * s));",
        &[".mean_variance();", "map(|(_, __v_", ".rsqrt();"],
    );
    check_columns(
        "let (e, sum) = x.shifted_exp(); y.row(row).write(e.map(|e| e / sum));",
        &[".max_exp_sum();", ".exp(); __e_"],
    );
    // What two read is materialized.
    check_columns(
        "let m = x.max(); let e = x.map(|v| (v - m).exp()).materialize(); let s = e.sum(); y.row(row).write(e.map(|e| e / s));",
        &[".max().materialize();", ".zip(__sequence"],
    );
    check_columns(
        "let s = x.fold(0.0, |a, v| a + v * v).sum(); y.row(row).set(0, s.sqrt());",
        &[".fold(", ".reduce(|__a", ".sqrt()"],
    );
    check_columns(
        "if c > 1.0 { y.row(row).reverse().write_scan(x.reverse(), 0, |a, b| a + b); } else { y.row(row).write(x); }",
        &["if_(__m, gt::<Machine, _, _>(c, float(1.0))", ".columns::<__COLUMNS>(__strip).reverse()"],
    );
}

#[test]
fn bodies_that_cannot_be_followed_have_no_form_for_columns() {
    for statements in [
        "let mut s = 0.0; for j in 0..x.dim(1) { s = s + x.at(program_id(0), j); } y.row(program_id(0)).set(0, s);",
        "let row = program_id(0); y.row(row).set(0, x.at(row, 0));",
        "let row = program_id(0); y.row(row).set(1, x.row(row).sum());",
        "let row = program_id(0); let s = x.row(row).sum(); if s > 0.0 { y.row(row).set(0, s); }",
        "let row = program_id(0); y.row(row).write(x.row(row).shift(1));",
        "let row = program_id(0); y.row(row).set(0, x.row(row).sum()); y.row(row).write(x.row(row));",
        "let row = program_id(0); let s = x.row(row).sum(); y.row(row).set(0, x.row(row).fold(0.0, |a, v| a + v * s).sum());",
    ] {
        assert_eq!(columns(statements), None, "{statements}");
    }
}
