//! Reports as lines of JSON.

use dta_proto::wire::dta::DtaBody;
use serde::Deserialize;

use super::check::StoreArg;
use super::report::ReportArgs;
use crate::ReportOptions;

#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct ReportLine {
    store: Option<StoreArg>,
    immediate: Option<bool>,
    retransmittable: Option<bool>,
    // It takes all other fields, and rejects those that it does not know.
    #[serde(flatten)]
    report: ReportArgs,
}

impl ReportLine {
    /// Store, contents and options; options default to `usual`.
    pub(super) fn to_report(
        &self,
        usual: ReportOptions,
    ) -> Result<(Option<&StoreArg>, DtaBody<'_>, ReportOptions), String> {
        let options = ReportOptions {
            immediate: self.immediate.unwrap_or(usual.immediate),
            retransmittable: self.retransmittable.unwrap_or(usual.retransmittable),
        };
        Ok((self.store.as_ref(), self.report.to_body()?, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::key::Key;

    fn line(text: &str) -> Result<ReportLine, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn each_primitive() {
        let usual = ReportOptions { retransmittable: true, immediate: false };
        let first = line(
            r#"{"primitive":"key-write","store":1,"key":"0a0b","value":[1,2],"retransmittable":false,"immediate":true}"#,
        );
        let key = Key(*b"\x0a\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(
            first.unwrap().to_report(usual),
            Ok((
                Some(&StoreArg::Id(1)),
                DtaBody::KeyWrite { redundancy: 0, key, value: &[0, 0, 0, 1, 0, 0, 0, 2] },
                ReportOptions { retransmittable: false, immediate: true }
            ))
        );
        let all = [
            (
                r#"{"primitive":"append","list":3,"value":7}"#,
                DtaBody::Append { list: 3, value: &[0, 0, 0, 7] },
            ),
            (
                r#"{"primitive":"key-increment","redundancy":2,"key":"0a0b","delta":9}"#,
                DtaBody::KeyIncrement { redundancy: 2, key, delta: 9 },
            ),
            (
                r#"{"primitive":"postcarding","key":"0a0b","hop":1,"value":5}"#,
                DtaBody::Postcard { key, hop: 1, path_length: 0, value: 5 },
            ),
            (
                r#"{"primitive":"sketch-merge","epoch":1,"column":2,"cells":"3"}"#,
                DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[0, 0, 0, 3] },
            ),
        ];
        for (text, body) in all {
            assert_eq!(line(text).unwrap().to_report(usual), Ok((None, body, usual)), "{text}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = |text| line(text).unwrap_err();
        assert!(error(r#"{"primitive":"append","lists":3,"value":7}"#).contains("lists"));
        assert!(error(r#"{"primitive":"append","value":7}"#).contains("list"));
        assert!(error(r#"{"primitive":"apend","value":7}"#).contains("apend"));
        assert!(error(r#"{"list":1,"value":7}"#).contains("primitive"));
        let card = line(r#"{"primitive":"postcard","key":"0a","hop":1,"value":[5,6]}"#).unwrap();
        assert!(card.to_report(ReportOptions::default()).unwrap_err().contains("8 bytes, not 4"));
    }
}
