//! `max generate --download`: a model from a hub on this machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use max::pipelines::HuggingFaceRepo;

use crate::{Run, max, max_in, models};

const COMMIT: &str = "c0ffee0000000000000000000000000000000001";
const OTHER: &str = "beef000000000000000000000000000000000002";

/// A server of the repository `org/tiny`, with what `hf-hub` asks for: lists of files, and files in parts. It lives as long as the
/// test's process.
struct Hub {
    address: String,
    /// What was asked for: the path, and the range.
    requests: Arc<Mutex<Vec<(String, String)>>>,
    /// A file that is sent half once.
    interrupted: Arc<Mutex<Option<&'static str>>>,
}

impl Hub {
    fn new(files: &[&Path]) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = |path: &&Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect();
        let hub = Hub {
            address: format!("http://{}", listener.local_addr().unwrap()),
            requests: Arc::default(),
            interrupted: Arc::default(),
        };
        let (requests, interrupted) = (hub.requests.clone(), hub.interrupted.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &files, &requests, &interrupted);
            }
        });
        hub
    }

    /// The requests for a file since the last time.
    fn take_requests(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

/// Answers one request.
fn serve(
    mut stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    requests: &Mutex<Vec<(String, String)>>,
    interrupted: &Mutex<Option<&'static str>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let range = headers.iter().find_map(|line| line.strip_prefix("range: bytes=")).unwrap_or_default().to_owned();
    requests.lock().unwrap().push((path.clone(), range.clone()));
    let mut answer = |status: &str, headers: &str, length: usize, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    };
    let commit = |revision: &str| match revision {
        "main" | COMMIT => Some(COMMIT),
        "pr%2F1" | OTHER => Some(OTHER),
        _ => None,
    };
    if let Some(commit) = path.strip_prefix("/api/models/org/tiny/revision/").and_then(commit) {
        let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let info = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
        return answer("200 OK", "Content-Type: application/json\r\n", info.len(), info.as_bytes());
    }
    let file = path.strip_prefix("/org/tiny/resolve/").and_then(|path| path.split_once('/'));
    let Some((commit, name, bytes)) =
        file.and_then(|(revision, name)| Some((commit(revision)?, name, files.get(name)?)))
    else {
        return answer("404 Not Found", "", 0, b"");
    };
    let (first, last) = range.split_once('-').unwrap();
    let first: usize = first.parse().unwrap();
    let end = last.parse().map_or(bytes.len(), |last: usize| bytes.len().min(last + 1));
    let headers = format!(
        "X-Repo-Commit: {commit}\r\nETag: \"etag-{name}\"\r\nContent-Range: bytes {first}-{}/{}\r\n",
        end - 1,
        bytes.len()
    );
    let mut interrupted = interrupted.lock().unwrap();
    let sent = if *interrupted == Some(name) && last.is_empty() {
        *interrupted = None;
        first + (end - first) / 2
    } else {
        end
    };
    answer("206 Partial Content", &headers, end - first, &bytes[first..sent]);
}

fn generate(hub: &Hub, home: &Path, more: &[&str]) -> Run {
    let args = ["generate", "--model", "org/tiny", "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"];
    let variables = [
        ("HF_HOME", home.to_str().unwrap()),
        ("HF_ENDPOINT", hub.address.as_str()),
        ("HF_TOKEN", ""),
        ("HF_HUB_CACHE", ""),
        ("HF_HUB_OFFLINE", ""),
        ("NO_PROXY", "127.0.0.1"),
    ];
    max_in(&[&args, more].concat(), &variables)
}

#[test]
fn a_model_is_downloaded_on_request_and_generates() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let local = models::model(folder.path());
    let (config, weights) = (folder.path().join("config.json"), folder.path().join("model.safetensors"));
    let other = folder.path().join("README.md");
    std::fs::write(&other, "not needed").unwrap();
    let hub = Hub::new(&[&config, &weights, &other]);

    // Nothing is fetched unasked.
    let error = generate(&hub, home.path(), &[]).failure(1);
    assert!(
        error.contains("org/tiny") && error.contains("no revision `main`") && error.contains("`--download`"),
        "{error}"
    );
    assert_eq!(hub.take_requests(), []);

    // An interrupted download leaves no model, and is told.
    *hub.interrupted.lock().unwrap() = Some("model.safetensors");
    let error = generate(&hub, home.path(), &["--download"]).failure(1);
    for part in ["`org/tiny`, revision `main`: model.safetensors is missing", "the same command fetches the rest"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(generate(&hub, home.path(), &[]).failure(1).contains("no revision `main`"));

    // The next one goes on from there, with the same text as from the folder.
    hub.take_requests();
    let tokens = generate(&hub, home.path(), &["--download"]).success();
    let args = ["generate", "--model", &local, "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"];
    assert_eq!(tokens, max(&args).success());
    let requests = hub.take_requests();
    let half = std::fs::metadata(&weights).unwrap().len() / 2;
    let rest = (format!("/org/tiny/resolve/{COMMIT}/model.safetensors"), format!("{half}-"));
    assert!(requests.contains(&rest), "{requests:?}");
    assert!(!requests.iter().any(|(path, _)| path.contains("config.json") || path.contains("README")), "{requests:?}");

    // What is there is asked for no more, with and without the flag.
    assert_eq!(generate(&hub, home.path(), &["--download"]).success(), tokens);
    assert_eq!(generate(&hub, home.path(), &[]).success(), tokens);
    assert_eq!(hub.take_requests(), []);
    let snapshot = home.path().join("hub/models--org--tiny/snapshots").join(COMMIT);
    assert_eq!(std::fs::read(snapshot.join("model.safetensors")).unwrap(), std::fs::read(&weights).unwrap());

    // A revision is another commit.
    assert!(generate(&hub, home.path(), &["--revision", "pr/1"]).failure(1).contains("--revision pr/1"));
    assert_eq!(generate(&hub, home.path(), &["--revision", "pr/1", "--download"]).success(), tokens);
    assert!(home.path().join("hub/models--org--tiny/snapshots").join(OTHER).join("config.json").is_file());

    // What is beside the weights comes before them: a commit that has these counts as a model.
    let (generation, home) = (folder.path().join("generation_config.json"), tempfile::tempdir().unwrap());
    std::fs::write(&generation, "{}").unwrap();
    let whole = Hub::new(&[&config, &weights, &generation]);
    *whole.interrupted.lock().unwrap() = Some("generation_config.json");
    let error = generate(&whole, home.path(), &["--revision", COMMIT, "--download"]).failure(1);
    assert!(error.contains("generation_config.json is missing"), "{error}");
    let error = generate(&whole, home.path(), &["--revision", COMMIT]).failure(1);
    assert!(error.contains("model*.safetensors") || error.contains("no revision"), "{error}");
    assert_eq!(generate(&whole, home.path(), &["--revision", COMMIT, "--download"]).success(), tokens);
}

#[test]
fn shards_are_those_of_the_index() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    models::model(folder.path());
    let file = |name: &str| folder.path().join(name);
    let (shard, index) = (file("model-00001-of-00001.safetensors"), file("model.safetensors.index.json"));
    std::fs::rename(file("model.safetensors"), &shard).unwrap();
    let names = max::graph::weights::SafetensorWeights::open([&shard]).unwrap();
    let map: BTreeMap<String, &str> =
        names.names().map(|name| (name.to_owned(), "model-00001-of-00001.safetensors")).collect();
    std::fs::write(&index, serde_json::json!({"weight_map": map}).to_string()).unwrap();
    let twice = file("model.fp16.safetensors");
    std::fs::write(&twice, "another form of the weights").unwrap();
    let hub = Hub::new(&[&file("config.json"), &shard, &index, &twice]);
    assert!(!generate(&hub, home.path(), &["--download"]).success().is_empty());
    assert!(!hub.take_requests().iter().any(|(path, _)| path.contains("fp16")));
    // A shard that was removed is fetched again.
    let snapshot = home.path().join("hub/models--org--tiny/snapshots").join(COMMIT);
    std::fs::remove_file(snapshot.join("model-00001-of-00001.safetensors")).unwrap();
    let error = generate(&hub, home.path(), &[]).failure(1);
    assert!(error.contains("lacks model-00001-of-00001.safetensors") && error.contains("`--download`"), "{error}");
    assert!(!generate(&hub, home.path(), &["--download"]).success().is_empty());
}

#[test]
fn what_cannot_be_downloaded_is_said() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    models::model(folder.path());
    let gguf = folder.path().join("tiny.gguf");
    std::fs::write(&gguf, "").unwrap();
    let hub = Hub::new(&[&folder.path().join("config.json"), &gguf]);
    let error = generate(&hub, home.path(), &["--download"]).failure(1);
    assert!(error.contains("there is no model*.safetensors") && error.contains("tiny.gguf"), "{error}");
    let error = generate(&hub, home.path(), &["--download", "--revision", "v9"]).failure(1);
    for part in ["`org/tiny`, revision `v9`", &hub.address, "404", "check both names", "HF_TOKEN"] {
        assert!(error.contains(part), "{error}");
    }
    let offline = [("HF_HOME", home.path().to_str().unwrap()), ("HF_HUB_OFFLINE", "1")];
    let error = max_in(&["generate", "--model", "org/tiny", "--ids", "4", "--download"], &offline).failure(1);
    assert!(error.contains("HF_HUB_OFFLINE is 1"), "{error}");
    let online = [
        ("HF_HOME", offline[0].1),
        ("HF_HUB_OFFLINE", "False"),
        ("HF_ENDPOINT", &hub.address),
        ("NO_PROXY", "127.0.0.1"),
    ];
    let error = max_in(&["generate", "--model", "org/tiny", "--ids", "4", "--download"], &online).failure(1);
    assert!(error.contains("there is no model*.safetensors"), "{error}");
}

#[test]
fn files_of_a_model_are_downloaded_by_name() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    models::model(folder.path());
    let (config, weights) = (folder.path().join("config.json"), folder.path().join("model.safetensors"));
    let hub = Hub::new(&[&config, &weights]);
    let repo = |id: &str| HuggingFaceRepo::new(id, None).unwrap().cache(home.path()).endpoint(&hub.address);
    let (tiny, names) = (repo("org/tiny"), ["model.safetensors", "config.json"]);
    assert_eq!(tiny.files().unwrap(), ["config.json", "model.safetensors"]);
    assert_eq!(tiny.try_to_load_from_cache("config.json").unwrap(), None);
    hub.take_requests();
    let paths = tiny.download(&names, false, 4, None).unwrap();
    for (path, source) in paths.iter().zip([&weights, &config]) {
        assert!(path.starts_with(tiny.local_model_path().unwrap()));
        assert_eq!(std::fs::read(path).unwrap(), std::fs::read(source).unwrap());
    }
    let asked = |name: &str| hub.take_requests().iter().any(|(path, _)| path.ends_with(name));
    assert!(asked("/model.safetensors"));
    // What the cache has is not asked for, unless it is to come again.
    assert_eq!(tiny.download(&names, false, 4, None).unwrap(), paths);
    assert_eq!(hub.take_requests(), []);
    assert_eq!(tiny.download(&names[1..], true, 1, None).unwrap(), paths[1..]);
    assert!(asked("/config.json"));
    for (error, part) in [
        (tiny.download(&["none.bin"], false, 1, None).map(drop), "there is no none.bin in the repository"),
        (tiny.download(&["../x"], true, 1, None).map(drop), "outside of the model's folder"),
        (repo("org/other").files().map(drop), "check both names, and give a token in HF_TOKEN"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
