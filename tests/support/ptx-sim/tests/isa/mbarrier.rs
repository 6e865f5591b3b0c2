//! `mbarrier` and bulk copies of tensors: phases, bytes that are on their way,
//! boxes at the edges of a tensor, and what the checks find.

use ptx_sim::{Arg, FaultKind, Launch, Memory, Module, TensorMap, run};

/// Runs `body` with a tensor map of 16-bit elements as parameter `map`, whose address is in `%rd1`, the address of the
/// results in `%rd0`, 4096 bytes of shared memory at `%r10`, and two barriers at `%r11` and behind it.
fn with_map(map: &TensorMap, memory: &mut Memory, body: &str, threads: u32, out: usize) -> Result<Vec<u8>, FaultKind> {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n
         .visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {{
         .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .pred %q<32>;
         .shared .align 1024 .b8 tile[4096]; .shared .align 8 .b8 bars[16];
         ld.param.u64 %rd0, [out]; mov.b64 %rd2, map; cvta.param.u64 %rd1, %rd2;
         mov.u32 %r31, %tid.x; mov.u32 %r10, tile; mov.u32 %r11, bars; setp.eq.u32 %q0, %r31, 0;
         {body} ret; }}"
    );
    crate::dump(&text);
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let result = memory.alloc(out);
    let args = [Arg::Bytes(map.encode().unwrap().to_vec()), Arg::Ptr(result)];
    let mut launch = Launch::new("k", 1, threads, &args);
    launch.step_limit = 1 << 20;
    run(&module, launch, memory).map_err(|fault| *fault.kind)?;
    Ok(memory.bytes(result).to_vec())
}

/// A tensor of numbered elements, `rows` of `columns`, a row every `pitch`.
fn tensor(memory: &mut Memory, rows: u64, columns: u64, pitch: u64, extents: [u32; 2], swizzle: u32) -> TensorMap {
    let mut data = vec![0xff; (rows * pitch * 2) as usize];
    for r in 0..rows {
        for c in 0..columns {
            let at = 2 * (r * pitch + c) as usize;
            data[at..at + 2].copy_from_slice(&number(r as i64, c as i64).to_le_bytes());
        }
    }
    let address = memory.alloc_from(&data);
    let (dims, strides) = (vec![columns, rows], vec![2 * pitch]);
    TensorMap { address, element: 2, dims, strides, extents: extents.to_vec(), swizzle }
}

fn number(row: i64, column: i64) -> u16 {
    (row * 100 + column + 1) as u16
}

const INIT: &str = "@%q0 mbarrier.init.shared::cta.b64 [%r11], 1; bar.sync 0;";
const WAIT: &str = "wait: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r11], 0; @!%q1 bra wait;";

fn copy(x: i32, y: i32, bytes: u32) -> String {
    format!(
        "mov.b32 %r1, {x}; mov.b32 %r2, {y};
         @%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {bytes};
         @%q0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
             [%r10], [%rd1, {{%r1, %r2}}], [%r11];"
    )
}

/// Each of 128 threads writes 16 bytes of shared memory to the results.
const KEEP: &str = "mad.lo.u32 %r3, %r31, 16, %r10; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3];
    mul.wide.u32 %rd3, %r31, 16; add.s64 %rd4, %rd0, %rd3; st.global.v4.b32 [%rd4], {%r4, %r5, %r6, %r7};";

#[test]
fn boxes_of_a_tensor() {
    for (swizzle, bits) in [(0, 0), (32, 1), (64, 2), (128, 3)] {
        for (x, y) in [(0, 0), (8, 3), (-4, -2), (30, 15), (100, 0), (0, -40)] {
            let mut memory = Memory::new();
            let columns = if swizzle == 0 { 64 } else { swizzle / 2 };
            let rows = 1024 / columns;
            let map = tensor(&mut memory, 17, 37, 40, [columns, rows], swizzle);
            let body = format!("{INIT} {} {WAIT} {KEEP}", copy(x, y, 2048));
            let out = with_map(&map, &mut memory, &body, 128, 2048).unwrap_or_else(|e| panic!("{e}"));
            for r in 0..i64::from(rows) {
                for c in 0..i64::from(columns) {
                    // Swizzle<bits, 4, 3> of the byte in shared memory, which begins at a multiple of 1024.
                    let byte = 2 * (r * i64::from(columns) + c) as usize;
                    let byte = byte ^ (byte & ((1 << bits) - 1) << 7) >> 3;
                    let got = u16::from_le_bytes([out[byte], out[byte + 1]]);
                    let (row, column) = (r + i64::from(y), c + i64::from(x));
                    let inside = (0..17).contains(&row) && (0..37).contains(&column);
                    let want = if inside { number(row, column) } else { 0 };
                    assert_eq!(got, want, "{swizzle}: {r}, {c} from {x}, {y}");
                }
            }
        }
    }
}

#[test]
fn a_ring_of_stages() {
    // One warp copies rows to two stages in turn, when the other has read what was there; that adds them up.
    let mut memory = Memory::new();
    let map = tensor(&mut memory, 10, 64, 64, [64, 1], 128);
    let body = "
        @%q0 mbarrier.init.shared::cta.b64 [%r11], 1; @%q0 mbarrier.init.shared::cta.b64 [%r11+8], 32; bar.sync 0;
        mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r9, 0; setp.ge.u32 %q2, %r31, 32; @%q2 bra reads;
        setp.ne.u32 %q3, %r31, 0; @%q3 bra done;
    writes:
        and.b32 %r3, %r2, 1; xor.b32 %r4, %r3, 1;
        try: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r11+8], %r4; @!%q1 bra try;
        mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r11], 128;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r10], [%rd1, {%r1, %r2}], [%r11];
        add.u32 %r2, %r2, 1; setp.lt.u32 %q1, %r2, 10; @%q1 bra writes; bra done;
    reads:
        and.b32 %r3, %r2, 1;
        full: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %q1, [%r11], %r3; @!%q1 bra full;
        and.b32 %r5, %r31, 31; mad.lo.u32 %r6, %r5, 4, %r10; ld.shared.b32 %r7, [%r6]; add.u32 %r9, %r9, %r7;
        mbarrier.arrive.release.cta.shared::cta.b64 _, [%r11+8];
        add.u32 %r2, %r2, 1; setp.lt.u32 %q1, %r2, 10; @%q1 bra reads;
        mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd0, %rd3; st.global.b32 [%rd4], %r9;
    done:";
    let out = with_map(&map, &mut memory, body, 64, 128).unwrap_or_else(|e| panic!("{e}"));
    for (lane, got) in out.chunks_exact(4).enumerate() {
        let pair = |row: i64| [0, 1].map(|i| u32::from(number(row, 2 * lane as i64 + i)));
        let want: u32 = (0..10).map(|row| pair(row)[0] + (pair(row)[1] << 16)).sum();
        assert_eq!(u32::from_le_bytes(got.try_into().unwrap()), want, "{lane}");
    }
    // Without its wait, the first warp is a phase too early.
    let early = body.replace("@!%q1 bra try;", "");
    let kind = with_map(&map, &mut memory, &early, 64, 128).unwrap_err();
    assert!(matches!(kind, FaultKind::BadMbarrier { .. }), "{kind}");
    // A consumer that does not wait reads what is not there.
    let early = body.replace("@!%q1 bra full;", "");
    let kind = with_map(&map, &mut memory, &early, 64, 128).unwrap_err();
    assert!(matches!(kind, FaultKind::UninitialisedMemory { .. } | FaultKind::PendingCopy { .. }), "{kind}");
}

#[test]
fn states_and_counts_of_arrivals() {
    let mut memory = Memory::new();
    let map = tensor(&mut memory, 1, 64, 64, [64, 1], 128);
    // 40 arrivals: one of each thread, and eight more of one.
    let body = "@%q0 mbarrier.init.shared.b64 [%r11], 40; bar.sync 0; bar.warp.sync -1;
        mbarrier.arrive.shared.b64 %rd5, [%r11]; mbarrier.test_wait.shared.b64 %q2, [%r11], %rd5;
        @%q0 mbarrier.arrive.shared.b64 _, [%r11], 8; bar.warp.sync -1;
        mbarrier.test_wait.shared.b64 %q1, [%r11], %rd5; bar.warp.sync -1; @%q0 mbarrier.inval.shared.b64 [%r11];
        selp.b32 %r1, 1, 0, %q1; selp.b32 %r2, 2, 0, %q2; or.b32 %r1, %r1, %r2;
        mul.wide.u32 %rd3, %r31, 4; add.s64 %rd4, %rd0, %rd3; st.global.b32 [%rd4], %r1;";
    let out = with_map(&map, &mut memory, body, 32, 128).unwrap_or_else(|e| panic!("{e}"));
    assert!(out.chunks_exact(4).all(|word| word == [1, 0, 0, 0]), "{out:?}");
}

#[test]
fn faults_of_barriers_and_copies() {
    use FaultKind::*;
    macro_rules! is {
        ($kind:expr, $expected:pat) => {
            let kind = $kind;
            assert!(matches!(kind, $expected), "{kind}");
        };
    }
    let fault = |body: &str| {
        let mut memory = Memory::new();
        let map = tensor(&mut memory, 16, 64, 64, [64, 16], 128);
        match with_map(&map, &mut memory, body, 128, 2048) {
            Ok(_) => panic!("no fault in {body}"),
            Err(kind) => kind,
        }
    };
    let copy = copy(0, 0, 2048);
    // The data is read before it has arrived, or by threads that have not waited.
    is!(fault(&format!("{INIT} {copy} bar.sync 0; {KEEP}")), PendingCopy { .. });
    let one_waits = WAIT.replace("wait: ", "setp.ge.u32 %q3, %r31, 32; @%q3 bra over; wait: ") + "over:";
    is!(fault(&format!("{INIT} {copy} bar.sync 0; {one_waits} {KEEP}")), Race { .. } | PendingCopy { .. });
    // Nobody waits.
    is!(fault(&format!("{INIT} {copy}")), PendingBulk);
    // Other bytes are expected than come.
    is!(fault(&format!("{INIT} {} {WAIT} {KEEP}", copy.replace("2048", "4096"))), Deadlock { .. });
    // Others do not know that the barrier was made; it was not; too many arrive; it is used as memory.
    is!(fault(&format!("{} {WAIT}", INIT.replace("bar.sync 0;", ""))), Race { .. });
    is!(fault("mbarrier.arrive.shared.b64 _, [%r11];"), BadMbarrier { .. });
    is!(fault(&format!("{INIT} mbarrier.arrive.shared.b64 _, [%r11], 2;")), BadMbarrier { .. });
    is!(fault(&format!("{INIT} ld.shared.b32 %r1, [%r11];")), BadMbarrier { .. });
    is!(fault(&format!("{INIT} {INIT}")), BadMbarrier { .. });
    // The target was written, and not fenced off.
    let write = "mad.lo.u32 %r3, %r31, 16, %r10; mov.b32 %r4, 7; st.shared.b32 [%r3], %r4;";
    is!(fault(&format!("{write} {INIT} {copy} {WAIT} {KEEP}")), ProxyFence { .. });
    let fenced = format!("{write} fence.proxy.async.shared::cta; {INIT} {copy} {WAIT} bar.sync 0; {write} {KEEP}");
    let mut memory = Memory::new();
    let map = tensor(&mut memory, 16, 64, 64, [64, 16], 128);
    with_map(&map, &mut memory, &fenced, 128, 2048).unwrap_or_else(|e| panic!("{e}"));
    // The target and the map have to lie right.
    let beside = copy.replace("[%r10]", "[%r10+64]");
    is!(fault(&format!("{INIT} {beside} {WAIT}")), BadTensorCopy { .. });
    let beside = copy.replace("[%rd1, ", "[%rd1+64, ");
    is!(fault(&format!("{INIT} {beside} {WAIT}")), BadTensorCopy { .. });
}
