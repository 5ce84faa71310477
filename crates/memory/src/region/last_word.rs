//! The error message when the memory of a mapped file is lost.
//!
//! Anyone who may write a file can truncate it while it is mapped, and a file system can run out of room for a page that was
//! never allocated. Touching such a page raises SIGBUS, whatever was checked a moment before. The process cannot go on,
//! because bytes that a NIC wrote are lost; but it names the file and exits with a failure status.
//!
//! The name comes from the kernel's own list of mappings: nothing has to be recorded beforehand.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};

/// The exit status of a program that failed.
const FAILED: c_int = 1;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// From now on, a process that dies because the memory of a file is lost names the file on standard error and exits with
/// status 1. Other bus errors are handled as before.
pub fn name_lost_files() {
    BEFORE.get_or_init(|| {
        // SAFETY: a `sigaction` of all zeros is valid: no handler, no flags, an empty mask.
        let (mut own, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        own.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        // On the stack, if any, that the standard library gives each thread for its own handler.
        own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid for the call. The handler does only what a handler may (signal-safety(7)).
        unsafe { libc::sigaction(libc::SIGBUS, &own, &mut before) };
        before
    });
}

/// Makes only system calls, and takes no lock.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes the signal's details.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == libc::BUS_ADRERR {
        let mut path = [0; 512];
        let len = mapped_file_path(address, &mut path);
        if len > 0 {
            for part in [
                &path[..len],
                b": the file was cut short while it was in use, or its file system is full (SIGBUS): exiting\n",
            ] {
                // SAFETY: `part` is valid for its length. With standard error closed there is nobody left to inform.
                unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
            }
            // SAFETY: ends the process without running any more of it.
            unsafe { libc::_exit(FAILED) };
        }
    }
    // SAFETY: the previous action, or the default, is restored. A failed access is then repeated and fails again; a
    // signal that somebody sent is sent again.
    unsafe {
        let begins_with: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(signal, BEFORE.get().unwrap_or(&begins_with), null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Writes the path of the file mapped at an address, and returns its length; 0 if there is none.
fn mapped_file_path(address: usize, path: &mut [u8]) -> usize {
    // SAFETY: the name ends with a zero byte.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if maps < 0 {
        return 0;
    }
    find_mapped_path(address, path, |buffer| {
        // SAFETY: `buffer` is valid for its length.
        let read = unsafe { libc::read(maps, buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(read).unwrap_or(0)
    })
}

/// [`mapped_file_path`] for lines such as `7f00-7f80 rw-s 00000000 00:1a 123   /dev/shm/a b.region`, which `read` returns some
/// bytes at a time.
fn find_mapped_path(address: usize, path: &mut [u8], mut read: impl FnMut(&mut [u8]) -> usize) -> usize {
    let mut buffer = [0; 256];
    let (mut start, mut number, mut is_range, mut is_here, mut len) = (0, 0usize, true, false, 0);
    loop {
        let got = read(&mut buffer);
        if got == 0 {
            return if is_here { len } else { 0 };
        }
        for byte in &buffer[..got] {
            match *byte {
                b'\n' if is_here => return len,
                b'\n' => (number, is_range) = (0, true),
                b'-' if is_range => (start, number) = (number, 0),
                b' ' if is_range => {
                    (is_range, is_here) = (false, (start..number).contains(&address));
                }
                digit if is_range => {
                    let digit = char::from(digit).to_digit(16).unwrap_or(0) as usize;
                    number = number.wrapping_shl(4) | digit;
                }
                // No column before the path contains a slash.
                byte if is_here && (len > 0 || byte == b'/') && len < path.len() => {
                    path[len] = if byte.is_ascii_control() { b'?' } else { byte };
                    len += 1;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_an_address_in_it() {
        let maps = b"55d0-55e0 r-xp 00000000 fd:01 12       /usr/bin/dta-collector\n\
            7f00-7f80 rw-s 00000000 00:1a 123                          /dev/shm/a b.region (deleted)\n\
            7f80-7fa0 rw-p 00000000 00:00 0 \n\
            7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                   [stack]\n\
            7ffc00030000-7ffc00031000 rw-s 00000000 00:1a 7            /dev/shm/last";
        for chunk in [1, 7, 256] {
            let at = |address, room| {
                let (mut rest, mut path) = (&maps[..], vec![0; room]);
                let len = find_mapped_path(address, &mut path, |buffer| {
                    let n = chunk.min(rest.len()).min(buffer.len());
                    buffer[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    n
                });
                String::from_utf8(path[..len].to_vec()).unwrap()
            };
            assert_eq!(at(0x7f00, 512), "/dev/shm/a b.region (deleted)");
            assert_eq!(at(0x7f7f, 8), "/dev/shm");
            assert_eq!((at(0x7f80, 512), at(0x7ffc_0000_0001, 512)), (String::new(), String::new()));
            assert_eq!((at(0x1, 512), at(0x7ffc_0003_0fff, 512)), (String::new(), "/dev/shm/last".into()));
        }
        // The real list: this function is in a file.
        let mut path = [0; 512];
        let len = mapped_file_path(a_mapping_is_found_by_an_address_in_it as fn() as usize, &mut path);
        let own = std::env::current_exe().unwrap();
        assert!(own.to_string_lossy().as_bytes().starts_with(&path[..len]) && len > 0);
    }
}
