//! Models in the cache of Hugging Face's tools, by the names that they have on its hub.
//!
//! The layout is that of `huggingface_hub`'s documentation ("Understand caching"): `models--ORG--NAME` has the commits of branches
//! and tags in `refs`, and the files of each commit in `snapshots`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{PipelineError, Result};

/// The branch of a model without a revision.
const MAIN: &str = "main";

/// The most letters of a model's name, and of a commit's.
const LONGEST: usize = 200;

/// The folder of all models: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`, of the variables that there are.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let direct = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    let home = || folder("HF_HOME").map(|home| home.join("hub"));
    let caches =
        || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME").or_else(|| folder("USERPROFILE"))?.join(".cache")));
    direct.or_else(home).or_else(|| Some(caches()?.join("huggingface/hub")))
}

/// `ORG/NAME` as the hub allows it, or `None`.
fn model_name(path: &Path) -> Option<(&str, &str)> {
    let allowed = |part: &str| {
        let letters = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        letters && !part.is_empty() && part.len() <= LONGEST && !part.starts_with('.') && !part.contains("--")
    };
    path.to_str()?.split_once('/').filter(|(org, name)| allowed(org) && allowed(name))
}

/// Whether a revision stays within the folder of those.
fn is_revision(revision: &str) -> bool {
    let parts = revision.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    parts && revision.len() <= LONGEST && !revision.contains(['\\', ':', '\0'])
}

/// The folder of a model: `path` itself if it is there, or that of its revision in the cache.
///
/// # Errors
/// When there is neither, with where it was looked for and how it gets there.
pub(super) fn locate(path: &Path, revision: Option<&str>) -> Result<PathBuf> {
    locate_in(path, revision, cache(|name| std::env::var_os(name)))
}

fn locate_in(path: &Path, revision: Option<&str>, cache: Option<PathBuf>) -> Result<PathBuf> {
    let no_model = |reason: String| Err(PipelineError::NoModel { path: path.into(), reason });
    if path.exists() {
        return match revision {
            None => Ok(path.into()),
            Some(_) => no_model("this is a file or folder, which has no revisions: leave out `revision`".into()),
        };
    }
    let (Some((org, name)), Some(cache)) = (model_name(path), cache) else {
        return no_model("there is no such file or folder".into());
    };
    let (model, revision) = (cache.join(format!("models--{org}--{name}")), revision.unwrap_or(MAIN));
    if !is_revision(revision) {
        return no_model(format!("`{revision}` is no branch, tag or commit"));
    }
    let snapshots = model.join("snapshots");
    let commit = match std::fs::read_to_string(model.join("refs").join(revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => revision.to_owned(),
    };
    let snapshot = snapshots.join(&commit);
    if is_revision(&commit) && snapshot.is_dir() {
        return Ok(snapshot);
    }
    no_model(format!(
        "there is no such folder, and no revision `{revision}` in {}. Nothing is fetched: `hf download {org}/{name}{}` puts it \
         there",
        model.display(),
        if revision == MAIN { String::new() } else { format!(" --revision {revision}") },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_variables_say() {
        let with = |variables: &[(&str, &str)]| {
            let found =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            cache(found).map(|path| path.to_str().unwrap().replace('\\', "/"))
        };
        let home = ("HOME", "/home/a");
        assert_eq!(with(&[home]).as_deref(), Some("/home/a/.cache/huggingface/hub"));
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/huggingface/hub"));
        assert_eq!(with(&[home, ("HF_HOME", "/hf")]).as_deref(), Some("/hf/hub"));
        assert_eq!(with(&[home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub")]).as_deref(), Some("/hub"));
        assert_eq!(with(&[("HF_HOME", "")]), None);
    }

    #[test]
    fn models_are_found_by_name_and_revision() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models--org--a.model");
        for commit in ["c0ffee", "beef"] {
            std::fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
        }
        std::fs::create_dir_all(model.join("refs/pr")).unwrap();
        for (name, commit) in [("main", "c0ffee\n"), ("pr/1", "beef"), ("gone", "dead"), ("out", "../../x")] {
            std::fs::write(model.join("refs").join(name), commit).unwrap();
        }
        let find = |name: &str, revision| locate_in(Path::new(name), revision, Some(folder.path().into()));
        let found = |revision| find("org/a.model", revision).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(
            (found(None), found(Some("pr/1")), found(Some("beef"))),
            ("c0ffee".into(), "beef".into(), "beef".into())
        );
        for (name, revision, part) in [
            ("org/other", None, "`hf download org/other` puts it there"),
            ("org/a.model", Some("v2"), "`hf download org/a.model --revision v2`"),
            ("org/a.model", Some("gone"), "no revision `gone`"),
            ("org/a.model", Some("out"), "no revision `out`"),
            ("org/a.model", Some("../main"), "`../main` is no branch"),
            ("org/../b", None, "there is no such file or folder"),
            ("../b", None, "there is no such file or folder"),
            ("/org/b", None, "there is no such file or folder"),
        ] {
            let error = find(name, revision).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = find(folder.path().to_str().unwrap(), Some("main")).unwrap_err().to_string();
        assert!(error.contains("leave out `revision`"), "{error}");
    }
}
