//! How telemetry is named in a database.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How events are named in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schema {
    /// With what they are about in tags or labels.
    #[default]
    Tags,
    /// As INTCollector names them.
    IntCollector,
}

impl Schema {
    /// Its names.
    pub const NAMES: [&'static str; 2] = ["tags", "intcollector"];
}

impl FromStr for Schema {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tags" => Ok(Schema::Tags),
            "intcollector" => Ok(Schema::IntCollector),
            _ => Err("must be `tags` or `intcollector`".into()),
        }
    }
}

impl std::fmt::Display for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Schema::Tags => "tags",
            Schema::IntCollector => "intcollector",
        })
    }
}
