//! User-built programs: each is an object file with one program, which writes our record into its own ring.

use aya::maps::{MapData, RingBuf};
use aya::programs::{BtfTracePoint, FEntry, KProbe, Program, RawTracePoint, TracePoint};
use aya::{Btf, Ebpf, EbpfLoader};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::attach::Attachment;
use super::error_chain;
use super::maps::KernelSettings;
use crate::packet_trace::counts::Books;
use crate::packet_trace::digest::Digest;
use crate::packet_trace::record::TraceRecord;

/// The section names that give a program its place.
const PLACES: &str = "tp_btf/EVENT, fentry/FUNCTION, kprobe/FUNCTION, tracepoint/GROUP/EVENT, raw_tp/EVENT";

/// Records read at a time.
const MOST: usize = 1 << 16;

pub(super) struct UserProgram {
    _ebpf: Ebpf,
    pub(super) ring: RingBuf<MapData>,
    pub(super) number: u16,
    /// Its counters, except for packets that it did not report: only the program knows of these.
    pub(super) books: Books,
}

impl UserProgram {
    /// Loads an object file and attaches its program at the place named by its section.
    pub(super) fn load_and_attach(
        file: &str,
        number: u16,
        types: &Btf,
    ) -> Result<(Self, Attachment), String> {
        let bytes = std::fs::read(file).map_err(|error| format!("cannot read it: {error}"))?;
        let loaded = EbpfLoader::new().btf(Some(types)).load(&bytes);
        let mut ebpf = loaded.map_err(|error| format!("cannot load it: {}", error_chain(&error)))?;
        let names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
        let [name] = names.as_slice() else {
            return Err(format!(
                "it has {} programs ({}); an object is one point, and has one",
                names.len(),
                names.join(", ")
            ));
        };
        let section = section_of(&bytes, name)?;
        let ring = ebpf.take_map("ring").ok_or("it has no map named `ring` for its records")?;
        let ring = RingBuf::try_from(ring).map_err(|_| "its map `ring` is not a BPF_MAP_TYPE_RINGBUF")?;
        let program = ebpf.program_mut(name).ok_or("it has no program")?;
        let attached = attach_section(program, &section, types)?;
        Ok((Self { _ebpf: ebpf, ring, number, books: Books::default() }, attached))
    }

    /// Passes on the records that sampling chooses, without DTA's own traffic.
    pub(super) fn read(&mut self, settings: &KernelSettings, mut each: impl FnMut(TraceRecord)) {
        let sampling = settings.sampling;
        for _ in 0..MOST {
            let Some(bytes) = self.ring.next() else { return };
            self.books.seen += 1;
            match TraceRecord::read(&bytes) {
                None => self.books.unreadable += 1,
                Some(record) if settings.is_own_traffic(&record.flow) => self.books.own += 1,
                Some(record)
                    if !sampling.includes_packet(Digest { full: record.digest, core: record.core }) =>
                {
                    self.books.sampled_out += 1;
                }
                Some(record) => {
                    self.books.reported += 1;
                    each(TraceRecord { point: self.number, ..record });
                }
            }
        }
    }
}

/// The name of a program's section.
fn section_of(object: &[u8], program: &str) -> Result<String, String> {
    let object = object::File::parse(object).map_err(|error| format!("it is not an object file: {error}"))?;
    let symbol = object.symbols().find(|symbol| symbol.name() == Ok(program));
    let section = symbol.and_then(|symbol| symbol.section_index());
    let section = section.and_then(|index| object.section_by_index(index).ok());
    let name = section.as_ref().and_then(|section| section.name().ok());
    name.map(str::to_owned).ok_or_else(|| format!("its program {program} is not in a section"))
}

fn attach_section(program: &mut Program, section: &str, types: &Btf) -> Result<Attachment, String> {
    macro_rules! attached {
        ($program:expr, $attach:expr) => {{
            let id = $attach.map_err(|error| format!("{section}: {}", error_chain(&error)))?;
            let link = $program.take_link(id).map_err(|error| error_chain(&error))?;
            Ok(Attachment::elsewhere(link))
        }};
    }
    let refused = |error: &dyn std::error::Error| {
        format!("the kernel refuses its program {section}: {}", error_chain(error))
    };
    let place = section.split_once('/').map_or("", |(_, place)| place);
    match program {
        _ if place.is_empty() => {
            Err(format!("its section {section:?} does not say where to attach; these do: {PLACES}"))
        }
        Program::BtfTracePoint(program) => {
            let program: &mut BtfTracePoint = program;
            program.load(place, types).map_err(|error| refused(&error))?;
            attached!(program, program.attach())
        }
        Program::FEntry(program) => {
            let program: &mut FEntry = program;
            program.load(place, types).map_err(|error| refused(&error))?;
            attached!(program, program.attach())
        }
        Program::KProbe(program) => {
            let program: &mut KProbe = program;
            program.load().map_err(|error| refused(&error))?;
            attached!(program, program.attach(place, 0))
        }
        Program::TracePoint(program) => {
            let program: &mut TracePoint = program;
            let (group, event) = place.split_once('/').unwrap_or(("", place));
            program.load().map_err(|error| refused(&error))?;
            attached!(program, program.attach(group, event))
        }
        Program::RawTracePoint(program) => {
            let program: &mut RawTracePoint = program;
            program.load().map_err(|error| refused(&error))?;
            attached!(program, program.attach(place))
        }
        _ => Err(format!("a program of section {section:?} cannot be attached here; these can: {PLACES}")),
    }
}
