//! Streams: queues of work that is done when something waits for it.

use std::collections::VecDeque;
use std::thread::ThreadId;

use cudarc::driver::sys::CUresult;
use ptx_sim::{Arg, DevicePtr, Launch, Stats};

use crate::faults::{Code, Done, code};
use crate::module::Function;
use crate::state::State;

/// Work on a stream.
#[derive(Clone)]
pub enum Work {
    Kernel {
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: Vec<Vec<u8>>,
    },
    /// Host memory that was read when the copy was enqueued.
    Write {
        to: u64,
        data: Vec<u8>,
    },
    /// Page-locked host memory, read when the copy is done.
    Upload {
        to: u64,
        from: usize,
        bytes: usize,
    },
    Download {
        to: usize,
        from: u64,
        bytes: usize,
    },
    /// Between devices, or on one.
    Copy {
        to: (usize, u64),
        from: (usize, u64),
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u8,
        bytes: usize,
    },
    /// Waits until another stream has done that much.
    Wait {
        stream: usize,
        position: u64,
    },
}

/// A stream.
pub struct Stream {
    pub device: usize,
    queue: VecDeque<Work>,
    /// How much was enqueued, and how much of that is done.
    enqueued: u64,
    done: u64,
    /// What is captured instead of enqueued.
    pub capture: Option<Vec<Work>>,
    /// The thread that began the capture, if calls of that thread alone can spoil it.
    pub captured_by: Option<ThreadId>,
    /// Whether something that a capture does not allow has happened in it.
    pub invalidated: bool,
}

/// The place in a stream that an event marks.
pub struct Event {
    pub device: usize,
    pub mark: Option<(usize, u64)>,
}

impl Stream {
    pub fn new(device: usize) -> Stream {
        Stream {
            device,
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            capture: None,
            captured_by: None,
            invalidated: false,
        }
    }

    pub fn position(&self) -> u64 {
        self.enqueued
    }
}

impl State {
    pub fn stream(&mut self, handle: usize) -> Done<&mut Stream> {
        let current = self.current()?;
        match self.streams.get_mut(&handle) {
            Some(stream) if stream.device == current => Ok(stream),
            Some(_) => Err(code(CUresult::CUDA_ERROR_INVALID_CONTEXT)),
            // The legacy default stream is no part of this driver: nothing here may use it.
            None => Err(code(CUresult::CUDA_ERROR_INVALID_HANDLE)),
        }
    }

    pub fn enqueue(&mut self, handle: usize, work: Work) -> Done {
        let stream = self.stream(handle)?;
        match &mut stream.capture {
            Some(captured) => captured.push(work),
            None => {
                stream.queue.push_back(work);
                stream.enqueued += 1;
            }
        }
        Ok(())
    }

    /// Refuses what must not happen while a stream is captured.
    pub fn not_captured(&mut self, handle: usize) -> Done {
        let stream = self.stream(handle)?;
        if stream.capture.is_some() {
            stream.invalidated = true;
            return Err(code(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
        }
        Ok(())
    }

    /// Refuses what may wait for the device, such as allocating memory or loading code, while this thread captures or
    /// anybody captures for all threads; the capture is then of no use.
    pub fn no_capture_here(&mut self) -> Done {
        let here = std::thread::current().id();
        let concerns =
            |stream: &&mut Stream| stream.capture.is_some() && stream.captured_by.is_none_or(|by| by == here);
        let mut concerned = self.streams.values_mut().filter(concerns).peekable();
        if concerned.peek().is_none() {
            return Ok(());
        }
        concerned.for_each(|stream| stream.invalidated = true);
        Err(code(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED))
    }

    /// Does the work of a stream up to a position.
    pub fn drain(&mut self, handle: usize, position: u64) -> Done {
        loop {
            let Some(stream) = self.streams.get_mut(&handle) else { return Ok(()) };
            if stream.done >= position {
                return Ok(());
            }
            let (device, work) = (stream.device, stream.queue.pop_front());
            stream.done += 1;
            if let Some(work) = work {
                self.work(device, work)?;
            }
        }
    }

    pub fn drain_all(&mut self, device: usize) -> Done {
        let mut handles: Vec<usize> = self.streams.keys().copied().collect();
        handles.sort_unstable();
        for handle in handles {
            if let Some(stream) = self.streams.get(&handle).filter(|stream| stream.device == device) {
                let end = stream.position();
                self.drain(handle, end)?;
            }
        }
        Ok(())
    }

    /// A fault on the device: every call returns this from now on.
    fn lose(&mut self, code: Code, why: &str) -> Code {
        eprintln!("simulated GPU: {why}");
        self.lost = Some(code);
        code
    }

    fn work(&mut self, device: usize, work: Work) -> Done {
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        if let Work::Wait { stream, position } = work {
            return self.drain(stream, position);
        }
        let outcome = match work {
            Work::Kernel { function, grid, block, shared, args } => {
                if let Err(code) = self.faults.enter("kernel") {
                    return Err(self.lose(code, "a fault that was asked for"));
                }
                let args: Vec<Arg> = args.into_iter().map(argument).collect();
                let mut launch = Launch::new(&function.entry, 1, 1, &args);
                (launch.grid, launch.block, launch.dynamic_shared) = (grid, block, shared);
                launch.step_limit = 1 << 32;
                let memory = &mut self.gpus[device].memory;
                let outcome = ptx_sim::run(&function.module.parsed, launch, memory);
                outcome.map(|stats| self.ran(&function.entry, &stats)).map_err(|fault| fault.to_string())
            }
            Work::Write { to, data } => {
                self.gpus[device].memory.write(DevicePtr(to), &data).map_err(|fault| fault.to_string())
            }
            Work::Upload { to, from, bytes } => {
                // SAFETY: page-locked memory of this driver, which whoever enqueued the copy keeps until it is done.
                let data = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
                self.gpus[device].memory.write(DevicePtr(to), data).map_err(|fault| fault.to_string())
            }
            Work::Download { to, from, bytes } => {
                let data = self.gpus[device].memory.read(DevicePtr(from), bytes);
                data.map_err(|fault| fault.to_string()).map(|data| {
                    // SAFETY: as above, with room for as many bytes.
                    unsafe { (to as *mut u8).copy_from_nonoverlapping(data.as_ptr(), bytes) }
                })
            }
            Work::Copy { to, from, bytes } => {
                let data = self.gpus[from.0].memory.read(DevicePtr(from.1), bytes).map(<[u8]>::to_vec);
                let copied = data.and_then(|data| self.gpus[to.0].memory.write(DevicePtr(to.1), &data));
                copied.map_err(|fault| fault.to_string())
            }
            Work::Fill { to, value, bytes } => {
                let filled = self.gpus[device].memory.write(DevicePtr(to), &vec![value; bytes]);
                filled.map_err(|fault| fault.to_string())
            }
            Work::Wait { .. } => Ok(()),
        };
        outcome.map_err(|why| self.lose(code(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), &why))
    }

    /// Writes what a kernel printed, and to the log how it used memory.
    fn ran(&mut self, entry: &str, stats: &Stats) {
        print!("{}", stats.printed);
        let count = |kinds: &[&str]| kinds.iter().map(|kind| stats.count(kind)).sum::<u64>();
        let (loads, stores) = (count(&["ld.global", "cp.async.cg", "cp.async.ca"]), count(&["st.global"]));
        let Stats { global_load_bytes, global_store_bytes, .. } = stats;
        self.faults.note(&format!(
            "ran {entry}: {global_load_bytes} bytes in {loads} loads, {global_store_bytes} bytes in {stores} stores"
        ));
        if stats.excess_sectors > 0 {
            self.faults.note(&format!("uncoalesced {entry}: {} sectors too many", stats.excess_sectors));
        }
        if stats.bank_conflicts > 0 {
            self.faults.note(&format!("conflicts {entry}: {} of banks", stats.bank_conflicts));
        }
        if count(&["mma", "wgmma.mma_async"]) > 0 {
            self.faults.note(&format!("multiplied {entry} by tensor cores"));
        }
    }
}

fn argument(bytes: Vec<u8>) -> Arg {
    match *bytes {
        [a] => Arg::U8(a),
        [a, b] => Arg::U16(u16::from_le_bytes([a, b])),
        [a, b, c, d] => Arg::U32(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => Arg::U64(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => Arg::Bytes(bytes),
    }
}
