//! What Amazon's tools read besides the environment: `~/.aws/credentials` and `~/.aws/config`
//! (<https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-files.html>).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};

use super::S3Error;

pub type Variables = BTreeMap<String, String>;

/// Variables that say where credentials come from. If one is set, those in the files are not used.
const ELSEWHERE: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The environment's settings, completed from the files. Credentials come from, in this order: the environment, the
/// files, the machine (the instance metadata).
pub(super) fn storage_builder(variables: &Variables) -> Result<AmazonS3Builder, S3Error> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        // Other variables have nothing to do with storage.
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let files = CredentialFiles::from_variables(variables);
    let config = files.read_section(&files.config)?;
    let is_set = |names: &[&str]| names.iter().any(|name| variables.contains_key(*name));
    if let Some(region) = config.get("region")
        && !is_set(&["AWS_REGION", "AWS_DEFAULT_REGION"])
    {
        builder = builder.with_region(region);
    }
    if let Some(url) = config.get("endpoint_url")
        && !is_set(&["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
    {
        builder = builder.with_endpoint(url);
    }
    if is_set(&ELSEWHERE) {
        return Ok(builder);
    }
    match files.credential()? {
        Some(_) => Ok(builder.with_credentials(Arc::new(files))),
        // What was asked for by name must not be replaced silently.
        None if is_set(&["AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"]) => {
            Err(files.profile_error("has no aws_access_key_id and aws_secret_access_key"))
        }
        None => Ok(builder),
    }
}

/// The two files, and the profile to use. They are read again for each request, because tools write new keys into them.
#[derive(Debug)]
struct CredentialFiles {
    credentials: PathBuf,
    config: PathBuf,
    profile: String,
}

impl CredentialFiles {
    fn from_variables(variables: &Variables) -> CredentialFiles {
        let home = variables.get("HOME").map(PathBuf::from).unwrap_or_default().join(".aws");
        let path = |variable, name| variables.get(variable).map_or_else(|| home.join(name), PathBuf::from);
        CredentialFiles {
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: path("AWS_CONFIG_FILE", "config"),
            profile: variables.get("AWS_PROFILE").cloned().unwrap_or_else(|| "default".to_owned()),
        }
    }

    /// A file's entries for the profile; empty if there is no such file.
    fn read_section(&self, path: &Path) -> Result<BTreeMap<String, String>, S3Error> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(parse_section(&text, &self.profile)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(S3Error::file_error(path, error)),
        }
    }

    /// The keys of the profile, from the credentials file or else from the configuration file.
    fn credential(&self) -> Result<Option<AwsCredential>, S3Error> {
        for path in [&self.credentials, &self.config] {
            let mut entries = self.read_section(path)?;
            match (entries.remove("aws_access_key_id"), entries.remove("aws_secret_access_key")) {
                (Some(key_id), Some(secret_key)) => {
                    let token = entries.remove("aws_session_token");
                    return Ok(Some(AwsCredential { key_id, secret_key, token }));
                }
                (None, None) => {}
                _ => {
                    return Err(
                        self.profile_error("has only one of aws_access_key_id and aws_secret_access_key")
                    );
                }
            }
        }
        Ok(None)
    }

    fn profile_error(&self, problem: &str) -> S3Error {
        S3Error::file_error(&self.credentials, format!("profile {:?} {problem}", self.profile))
    }
}

#[async_trait]
impl CredentialProvider for CredentialFiles {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let without_keys = || self.profile_error("has no keys any more");
        let credential = self.credential().and_then(|credential| credential.ok_or_else(without_keys));
        credential.map(Arc::new).map_err(|error| object_store::Error::Unauthenticated {
            path: self.credentials.display().to_string(),
            source: error.into(),
        })
    }
}

/// The entries of a profile: `[NAME]` or `[profile NAME]`, then lines `key = value`. Nested entries, which are indented,
/// are skipped.
fn parse_section(text: &str, profile: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    let mut is_of_profile = false;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            is_of_profile = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
        } else if is_of_profile && let Some((key, value)) = line.split_once('=') {
            entries.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path, profile: &str) -> CredentialFiles {
        CredentialFiles {
            credentials: folder.join("credentials"),
            config: folder.join("config"),
            profile: profile.to_owned(),
        }
    }

    #[test]
    fn keys_are_those_of_the_profile() {
        let folder = tempfile::tempdir().unwrap();
        assert!(files(folder.path(), "default").credential().unwrap().is_none());
        let credentials = "# a comment\n[default]\naws_access_key_id=AKIA\naws_secret_access_key = s=cr+t\n\n\
            [ other ]\naws_access_key_id = OTHER\naws_secret_access_key = x\naws_session_token = t\n[half]\naws_access_key_id = H\n";
        std::fs::write(folder.path().join("credentials"), credentials).unwrap();
        let config = "[profile other]\nregion = eu-west-1\ns3 =\n  region = nested\n[profile late]\naws_access_key_id = L\n\
            aws_secret_access_key = l\n";
        std::fs::write(folder.path().join("config"), config).unwrap();
        let of = |profile| {
            let credential = files(folder.path(), profile).credential().unwrap();
            credential.map(|credential| (credential.key_id, credential.secret_key, credential.token))
        };
        assert_eq!(of("default"), Some(("AKIA".into(), "s=cr+t".into(), None)));
        assert_eq!(of("other"), Some(("OTHER".into(), "x".into(), Some("t".into()))));
        assert_eq!(of("late"), Some(("L".into(), "l".into(), None)));
        assert_eq!(of("none"), None);
        let half = files(folder.path(), "half").credential().unwrap_err().to_string();
        assert!(
            half.ends_with("profile \"half\" has only one of aws_access_key_id and aws_secret_access_key"),
            "{half}"
        );
        let other = files(folder.path(), "other");
        assert_eq!(other.read_section(&other.config).unwrap()["region"], "eu-west-1");
    }
}
