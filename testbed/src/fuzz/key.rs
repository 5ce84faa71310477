use dta_proto::key::{Flow, Key};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let key = text.parse::<Key>();
    if let Ok(key) = key {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
    let flow = text.parse::<Flow>();
    if let Ok(flow) = flow {
        assert_eq!(flow.to_string().parse(), Ok(flow));
    }
    key.is_ok() || flow.is_ok()
}
