//! Compiles the C side of the JPEG decoder against the libjpeg-turbo that `turbojpeg-sys` built.

fn main() {
    const SOURCES: [&str; 2] = ["src/ffi/jpeg_shim.c", "src/ffi/jpeg_huffman.c"];
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-changed=src/ffi/jpeg_huffman.h");
    println!("cargo::rerun-if-changed=build.rs");
    // `turbojpeg-sys` says where its headers are; without them there would be no telling which libjpeg is meant.
    let include = std::env::var("DEP_TURBOJPEG_INCLUDE")
        .expect("turbojpeg-sys did not say where the headers of libjpeg-turbo are (DEP_TURBOJPEG_INCLUDE)");
    let mut shim = cc::Build::new();
    shim.files(SOURCES).std("c11").warnings(true).extra_warnings(true);
    // The decoder is useless without optimisation, in tests too.
    shim.opt_level(3);
    for path in include.split(',') {
        shim.include(path);
    }
    shim.compile("sutler_jpeg_shim");
}
