//! `vprintf`.

use crate::module;
use ptx_sim::{Arg, Fault, FaultKind, Launch, Memory, Module, Stats, run};

const CALL: &str = "cvta.local.u64 %rd2, %rd2;
    { .param .b64 f; .param .b64 v; .param .b32 r;
      st.param.b64 [f], %rd1; st.param.b64 [v], %rd2;
      call.uni (r), vprintf, (f, v); }";

fn text(format: &str, body: &str) -> String {
    let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
    let global = format!(".global .align 1 .b8 text[{}] = {{{}}};", bytes.len(), bytes.join(", "));
    let function = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);";
    let body = format!(
        ".local .align 8 .b8 values[32]; mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, values; {body}"
    );
    module(1, &body).replace(".visible", &format!("{function}\n{global}\n.visible"))
}

fn printed(format: &str, threads: u32, body: &str) -> Result<Stats, Fault> {
    let module = Module::parse(&text(format, &format!("{body} {CALL}"))).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(8))];
    run(&module, Launch::new("k", 1, threads, &args), &mut memory)
}

#[test]
fn values_are_formatted_as_in_c() {
    let one = |format: &str, value: &str| {
        printed(format, 1, &format!("mov.b64 %rd3, {value}; st.local.b64 [values], %rd3;")).unwrap().printed
    };
    assert_eq!(one("a%lld%%\n", "-7"), "a-7%\n");
    assert_eq!(one("%llu %%", "-1"), "18446744073709551615 %");
    assert_eq!(one("%.7g", "0d3FB99999A0000000"), "0.1");
    assert_eq!(one("%.3g;", "0d40C81CD6E631F8A1"), "1.23e+04;");
    assert_eq!([one("%.7g", "0dFFF0000000000000"), one("%.7g", "0d8000000000000000")], ["-inf", "-0"]);
    assert_eq!(printed("no value\n", 1, "").unwrap().printed, "no value\n");
}

#[test]
fn each_thread_prints_its_own_values() {
    let body = "mov.u32 %r1, %tid.x; cvt.u64.u32 %rd3, %r1; st.local.b64 [values+8], %rd3; shl.b64 %rd3, %rd3, 1;
        st.local.b64 [values], %rd3;";
    assert_eq!(printed("%lld %lld, ", 3, body).unwrap().printed, "0 0, 2 1, 4 2, ");
}

#[test]
fn what_is_not_passed_is_not_read() {
    let fault = printed("%lld", 1, "").unwrap_err();
    assert!(matches!(*fault.kind, FaultKind::UninitialisedMemory { .. }), "{fault}");
    let fault = printed("%s", 1, "mov.b64 %rd3, 0; st.local.b64 [values], %rd3;").unwrap_err();
    assert!(matches!(*fault.kind, FaultKind::Print { .. }), "{fault}");
    let refused = |text: &str| Module::parse(text).unwrap_err().to_string();
    assert!(refused(&text("", CALL).replace("vprintf", "malloc")).contains("`malloc` is not simulated"));
    assert!(refused(&text("", &CALL.replace("(f, v)", "(f)"))).contains("number of arguments"));
    assert!(
        refused(&text("", &CALL.replace("(f, v)", "(f, values)"))).contains("`values` is not declared by `.param`")
    );
    assert!(refused(&text("", &CALL.replace("st.param.b64 [v]", "st.local.b64 [v]"))).contains("param memory"));
}
