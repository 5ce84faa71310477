//! The translator's own port.

use dta_proto::control::translator_client::TranslatorClient;
use dta_proto::control::{CompareProgramRequest, FlushRequest, ProgramEntry, TranslatorStatisticsRequest};
use dta_rpc::Ask as _;

use crate::attacker::{Attack, How};
use crate::common::daemon::counter;
use crate::{MOST_PARTS, RENEWALS, bed, call, endures, other};

const FLUSH: &str = "/dta.v1.Translator/Flush";

async fn translator_under(attack: Attack) {
    let mut bed = bed().await;
    let at = bed.translator.said("control").parse().unwrap();
    let mut other = TranslatorClient::new(other(at).await);
    let mut renewed = None;
    let (how, client) = (attack.how, bed.client.clone());
    let ask = async |_| {
        other.flush(FlushRequest {}).await?;
        other.statistics(TranslatorStatisticsRequest {}).await?;
        let nodes = client.statistics().await.unwrap();
        assert_eq!(counter(&nodes, "collector", "session.expired"), 0, "{how:?}");
        let now = counter(&nodes, "collector", "session.renewed");
        Ok(now >= *renewed.get_or_insert(now) + RENEWALS)
    };
    endures(bed.translator, "translator", 0, attack, ask).await;
    drop(bed.collector.take());
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_keep_a_translator_from_nobody() {
    let what = vec![call(FLUSH, &FlushRequest {})];
    translator_under(Attack { how: How::Cancelled, addresses: 1, connections: 4, calls: 16, what }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_do_not_fill_a_translator() {
    let what = vec![call("/dta.v1.Translator/Statistics", &TranslatorStatisticsRequest {})];
    translator_under(Attack { how: How::Unread, addresses: 1, connections: 20, calls: 32, what }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_messages_do_not_fill_a_translator() {
    let program = vec![ProgramEntry::default(); MOST_PARTS];
    let compare = call("/dta.v1.Translator/CompareProgram", &CompareProgramRequest { program });
    let what = vec![call(FLUSH, &FlushRequest {}), compare];
    translator_under(Attack { how: How::Whole, addresses: 4, connections: 2, calls: 8, what }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_messages_keep_a_translator_from_nobody() {
    let what = vec![call(FLUSH, &FlushRequest {})];
    translator_under(Attack { how: How::Empty, addresses: 4, connections: 2, calls: 16, what }).await;
}
