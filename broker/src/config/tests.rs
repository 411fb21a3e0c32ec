use std::path::Path;

use super::*;

fn parse(text: &str) -> Result<FileConfig, ConfigError> {
    FileConfig::parse(Path::new("corelane.toml"), text)
}

fn flags() -> StartFlags {
    StartFlags { data: vec!["/data".into()], ..StartFlags::default() }
}

#[test]
fn an_unknown_key_is_refused_with_file_line_and_the_likely_name() {
    let error = parse("# comment\nlisten = \"127.0.0.1:0\"\nmemmory = \"1GiB\"\n").unwrap_err().to_string();
    assert_eq!(error, "corelane.toml:3:1: unknown key \"memmory\"; did you mean \"memory\"?");
    let error = parse("colour = 1").unwrap_err().to_string();
    assert!(error.starts_with("corelane.toml:1:1: unknown key \"colour\"; known are data, data_must_exist, "), "{error}");
}

#[test]
fn a_wrong_value_is_refused_with_its_place() {
    for (text, line, said) in [
        ("memory = \"lots\"", 1, "is not a size"),
        ("\nidle_timeout = \"soon\"", 2, "is not a duration"),
        ("spin = \"2ms\"", 1, "at most 1ms"),
        ("listen = \"localhost\"", 1, "socket address"),
        ("data = \"/one\"", 1, "sequence"),
        ("cpus = [", 1, ""),
        ("cpus = \"3-1\"", 1, "is not a list of processors"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("corelane.toml:{line}:")) && error.contains(said), "{text}: {error}");
    }
}

#[test]
fn every_key_is_known_and_every_known_key_is_read() {
    for key in KEYS {
        let error = parse(&format!("{key} = {{ nothing = 1 }}")).unwrap_err().to_string();
        assert!(!error.contains("unknown key \""), "{key}: {error}");
    }
    let unknown = toml::from_str::<FileConfig>("x = 1").unwrap_err().message().to_string();
    let listed = unknown.matches('`').count() / 2 - 1;
    assert_eq!(listed, KEYS.len(), "{unknown}");
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let file = parse("data = [\"/a\", \"/b\"]\nlisten = \"127.0.0.1:1\"\nmemory = \"2GiB\"\nreserve = \"1MiB\"\nspin = \"50us\"")
        .unwrap();
    let flags = StartFlags { listen: Some("127.0.0.1:2".parse().unwrap()), ..StartFlags::default() };
    let settings = Settings::join(flags, file, 1 << 28).unwrap();
    assert_eq!(settings.data, ["/a", "/b"].map(PathBuf::from));
    assert_eq!(settings.listen.port(), 2);
    assert_eq!((settings.memory_bytes, settings.reserve_bytes), (2 << 30, Some(1 << 20)));
    assert_eq!(settings.spin, Spin::For(Duration::from_micros(50)));
    assert_eq!(Settings::join(super::tests::flags(), FileConfig::default(), 1 << 28).unwrap().memory_bytes, 1 << 28);
}

#[test]
fn each_core_has_its_least_memory_unless_less_is_asked_for() {
    let many = StartFlags { cores: Some(20), ..flags() };
    assert_eq!(Settings::join(many.clone(), FileConfig::default(), 1 << 28).unwrap().memory_bytes, 20 * MEMORY_BYTES_MIN);
    let file = parse("memory = \"1GiB\"").unwrap();
    assert!(matches!(Settings::join(many, file, 1 << 28), Err(ConfigError::OutOfRange { name: "memory", .. })));
}

#[test]
fn cores_are_as_many_as_processors_unless_something_else_is_said() {
    for (text, cpus) in [("3", vec![3]), ("0,2", vec![0, 2]), ("0-2,7", vec![0, 1, 2, 7])] {
        assert_eq!(text.parse(), Ok(CpuList(cpus)));
    }
    for text in ["", "1,1", "0-2,1", "x", "2-1", "4096", "-1"] {
        assert!(text.parse::<CpuList>().unwrap_err().contains("0-3"), "{text}");
    }
    let join = |flags: StartFlags, file: &str| Settings::join(flags, parse(file).unwrap(), 1 << 28);
    let settings = join(flags(), "").unwrap();
    assert_eq!((settings.cores, settings.cpus, settings.core_port), (1, vec![], 9100));
    let settings = join(flags(), "cpus = \"1-2\"\ncore_port = 0").unwrap();
    assert_eq!((settings.cores, settings.cpus, settings.core_port), (2, vec![1, 2], 0));
    let settings = join(StartFlags { cores: Some(4), ..flags() }, "cpus = 1").unwrap();
    assert_eq!((settings.cores, settings.cpus), (4, vec![1]));
    let error = join(StartFlags { cores: Some(5), ..flags() }, "memory = \"256MiB\"").unwrap_err().to_string();
    assert!(error.contains("memory is 268435456, allowed are 335544320"), "{error}");
    let error = join(StartFlags { cores: Some(0), ..flags() }, "").unwrap_err().to_string();
    assert!(error.contains("cores is 0, allowed are 1 to 1024"), "{error}");
    let error = join(StartFlags { cores: Some(2), core_port: Some(65535), ..flags() }, "").unwrap_err().to_string();
    assert!(error.contains("core_port + cores - 1 is 65536"), "{error}");
}

#[test]
fn only_loopback_without_insecure() {
    for address in ["0.0.0.0:9090", "10.0.0.1:9090", "[::]:9090"] {
        let open = StartFlags { listen: Some(address.parse().unwrap()), ..flags() };
        let error = Settings::join(open.clone(), FileConfig::default(), 1 << 28).unwrap_err().to_string();
        assert!(error.contains(address) && error.contains("--insecure"), "{error}");
        let insecure = StartFlags { insecure: true, ..open };
        assert!(Settings::join(insecure, FileConfig::default(), 1 << 28).is_ok());
    }
    for address in ["127.0.0.1:9090", "127.8.8.8:1", "[::1]:9090"] {
        let loopback = StartFlags { listen: Some(address.parse().unwrap()), ..flags() };
        assert!(Settings::join(loopback, FileConfig::default(), 1 << 28).is_ok());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert!(matches!(Settings::join(StartFlags::default(), FileConfig::default(), 1 << 28), Err(ConfigError::NoData)));
    let twice = StartFlags { data: vec!["/x".into(), "/x".into()], ..StartFlags::default() };
    assert!(matches!(Settings::join(twice, FileConfig::default(), 1 << 28), Err(ConfigError::DataTwice(_))));
    let small = StartFlags { memory: Some(SizeText(1)), ..flags() };
    let error = Settings::join(small, FileConfig::default(), 1 << 28).unwrap_err().to_string();
    assert_eq!(error, "memory is 1, allowed are 67108864 to 1099511627776");
}
