//! What the kernel calls a file system, for messages.

use std::ffi::CStr;

/// The file systems on which datasets are met, by the number that `statfs` gives (see `linux/magic.h`).
const NAMES: [(u64, &str); 19] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x0000_ef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlay"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "erofs"),
    (0x0000_6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x0bd0_0bd0, "lustre"),
    (0x00c3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

/// The name of the file system on which a path lies.
pub(crate) fn name_at(path: &CStr) -> String {
    let Ok(statfs) = rustix::fs::statfs(path) else { return "unknown".into() };
    // The field is signed on some machines; only its lower 32 bits are a number of the list.
    let magic = statfs.f_type as u64 & 0xffff_ffff;
    match NAMES.iter().find(|(number, _)| *number == magic) {
        Some((_, name)) => (*name).into(),
        None => format!("number {magic:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_it_is() {
        assert_eq!(name_at(c"/proc"), "proc");
        assert_eq!(name_at(c"/no/such/place"), "unknown");
    }
}
