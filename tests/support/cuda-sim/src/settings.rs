//! What the environment asks of the driver, read once when it starts: a value without sense is refused then, by name.

use std::ffi::OsString;
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::faults::Faults;

/// The driver's settings.
pub struct Settings {
    /// The compute capabilities of the devices.
    pub sms: Vec<u32>,
    /// Multiprocessors of each.
    pub multiprocessors: i32,
    /// Bytes of memory of each.
    pub memory: usize,
    /// The most shared memory that a block may have.
    pub shared: u64,
    /// The most blocks of a launch that there are.
    pub blocks: u32,
    /// 1000 times the major plus 10 times the minor number.
    pub version: i32,
    /// Where PTX that is loaded is written to.
    pub ptx: Option<PathBuf>,
    /// Whether work is done before the next call of any thread.
    pub eager: bool,
    pub faults: Faults,
}

/// A value that has no sense, and why.
fn refuse<T>(name: &str, value: &OsString, why: &str) -> Result<T, String> {
    Err(format!("{name}={}: {why}", value.to_string_lossy()))
}

impl Settings {
    /// Reads the variables that `of` gives; `sms` are the devices if the program says which there are.
    pub fn read(of: &dyn Fn(&str) -> Option<OsString>, sms: Option<&[u32]>) -> Result<Settings, String> {
        let number = |name: &str, default: usize, sensible: RangeInclusive<usize>| {
            let Some(value) = of(name) else { return Ok(default) };
            match value.to_str().and_then(|text| text.parse().ok()) {
                Some(number) if sensible.contains(&number) => Ok(number),
                _ => refuse(name, &value, &format!("no number of {} to {}", sensible.start(), sensible.end())),
            }
        };
        let devices = number("FAKE_CUDA_DEVICES", 1, 0..=64)?;
        let sm = number("FAKE_CUDA_SM", 90, 10..=999)?;
        // What a program that simulates GPUs for its own tests needs is not known; a test of the driver itself needs little.
        let memory = if sms.is_some() { 1 << 30 } else { 256 << 20 };
        let ptx = match of("FAKE_CUDA_PTX") {
            Some(folder) if !PathBuf::from(&folder).is_dir() => refuse("FAKE_CUDA_PTX", &folder, "no folder")?,
            folder => folder.map(PathBuf::from),
        };
        let rules = match of("FAKE_CUDA_FAIL") {
            Some(value) => match value.to_str().ok_or("it is no text".to_owned()).and_then(Faults::rules) {
                Ok(rules) => rules,
                Err(why) => refuse("FAKE_CUDA_FAIL", &value, &why)?,
            },
            None => Vec::new(),
        };
        let log = match of("FAKE_CUDA_LOG") {
            Some(path) => match File::create(&path) {
                Ok(file) => Some(file),
                Err(error) => refuse("FAKE_CUDA_LOG", &path, &error.to_string())?,
            },
            None => None,
        };
        Ok(Settings {
            sms: sms.map_or_else(|| vec![sm as u32; devices], <[u32]>::to_vec),
            multiprocessors: number("FAKE_CUDA_MULTIPROCESSORS", 2, 1..=1024)? as i32,
            memory: number("FAKE_CUDA_MEMORY", memory, 0..=isize::MAX as usize)?,
            shared: number("FAKE_CUDA_SHARED", 227 << 10, 0..=i32::MAX as usize)? as u64,
            blocks: number("FAKE_CUDA_BLOCKS", u32::MAX as usize, 1..=u32::MAX as usize)? as u32,
            version: number("FAKE_CUDA_VERSION", 12080, 1000..=99999)? as i32,
            ptx,
            eager: number("FAKE_CUDA_EAGER", 0, 0..=1)? == 1,
            faults: Faults::new(rules, log),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_without_sense_is_refused_by_name() {
        let folder = std::env::temp_dir();
        let missing = folder.join("no/such/folder").display().to_string();
        for (name, value, why) in [
            ("FAKE_CUDA_DEVICES", "some", "no number of 0 to 64"),
            ("FAKE_CUDA_DEVICES", "65", "no number of 0 to 64"),
            ("FAKE_CUDA_SM", "sm_90", "no number of 10 to 999"),
            ("FAKE_CUDA_MEMORY", "1GiB", "no number of 0 to 9223372036854775807"),
            ("FAKE_CUDA_SHARED", "-1", "no number of 0 to 2147483647"),
            ("FAKE_CUDA_MULTIPROCESSORS", "0", "no number of 1 to 1024"),
            ("FAKE_CUDA_BLOCKS", "0", "no number of 1 to 4294967295"),
            ("FAKE_CUDA_VERSION", "12.8", "no number of 1000 to 99999"),
            ("FAKE_CUDA_EAGER", "yes", "no number of 0 to 1"),
            ("FAKE_CUDA_FAIL", "cuInit", "`cuInit` is not FUNCTION=CODE@CALL"),
            ("FAKE_CUDA_FAIL", "ptx=1@1,cuInit=two@1", "`cuInit=two@1` is not FUNCTION=CODE@CALL"),
            ("FAKE_CUDA_FAIL", "cuInit=2@0", "`cuInit=2@0` is not FUNCTION=CODE@CALL"),
            ("FAKE_CUDA_FAIL", "cuInit=0@1", "0 is no failure"),
            ("FAKE_CUDA_FAIL", "cuInitialize=2@1", "the driver has no `cuInitialize`"),
            ("FAKE_CUDA_PTX", &missing, "no folder"),
            ("FAKE_CUDA_LOG", &missing, "No such file or directory (os error 2)"),
        ] {
            let read = Settings::read(&|asked| (asked == name).then(|| value.into()), None);
            assert_eq!(read.err(), Some(format!("{name}={value}: {why}")));
        }
    }

    #[test]
    fn values_with_sense_are_taken() {
        let of = |name: &str| match name {
            "FAKE_CUDA_DEVICES" => Some("2".into()),
            "FAKE_CUDA_SM" => Some("80".into()),
            "FAKE_CUDA_FAIL" => Some("kernel=700@2+,cuInit=950@1".into()),
            _ => None,
        };
        let settings = Settings::read(&of, None).unwrap();
        assert_eq!((settings.sms, settings.memory), (vec![80, 80], 256 << 20));
        let settings = Settings::read(&of, Some(&[100])).unwrap();
        assert_eq!((settings.sms, settings.memory), (vec![100], 1 << 30));
    }
}
