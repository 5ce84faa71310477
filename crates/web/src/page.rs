//! The page's files, embedded.

pub(crate) struct PageFile {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) content: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! page_files {
    ($($path:literal $file:literal $content_type:expr;)+) => {
        &[$(PageFile {
            path: $path,
            content_type: $content_type,
            content: include_str!(concat!("../page/", $file)),
        }),+]
    };
}

const FILES: &[PageFile] = page_files! {
    "/" "index.html" "text/html; charset=utf-8";
    "/style.css" "style.css" "text/css; charset=utf-8";
    "/icon.svg" "icon.svg" "image/svg+xml";
    "/app.js" "app.js" SCRIPT;
    "/ask.js" "ask.js" SCRIPT;
    "/charts.js" "charts.js" SCRIPT;
    "/elements.js" "elements.js" SCRIPT;
    "/format.js" "format.js" SCRIPT;
    "/view-alerts.js" "view-alerts.js" SCRIPT;
    "/periods.js" "periods.js" SCRIPT;
    "/view-overview.js" "view-overview.js" SCRIPT;
    "/view-map.js" "view-map.js" SCRIPT;
    "/view-flows.js" "view-flows.js" SCRIPT;
    "/view-flow.js" "view-flow.js" SCRIPT;
    "/view-events.js" "view-events.js" SCRIPT;
    "/view-drops.js" "view-drops.js" SCRIPT;
    "/view-memory.js" "view-memory.js" SCRIPT;
    "/view-top.js" "view-top.js" SCRIPT;
};

pub(crate) fn find_file(path: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|file| file.path == path)
}
