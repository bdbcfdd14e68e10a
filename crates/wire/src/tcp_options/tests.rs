use base::SeqNumber;

use super::{SackBlock, SackBlocks, TcpOptions, TcpOptionsError, Timestamps, timestamps_only};

#[test]
fn standard_timestamps_are_recognised_without_walking() {
    let block = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
    assert_eq!(timestamps_only(&block), Some(Timestamps { value: 7, echo: 9 }));
    assert_eq!(TcpOptions::parse(&block), Ok(TcpOptions::with_timestamps(7, 9)));
    assert_eq!(timestamps_only(&block[..11]), None);
    assert_eq!(timestamps_only(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]), None);
}

#[test]
fn a_typical_syn_is_read() {
    // The options of a Linux SYN: MSS 1460, SACK permitted, timestamps, NOP, window scale 7.
    let bytes = [2, 4, 5, 0xB4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
        sack: SackBlocks::EMPTY,
    };
    assert_eq!(TcpOptions::parse(&bytes), Ok(options));
    let mut out = [0; 40];
    assert_eq!(options.emit(&mut out), Ok(20));
    assert_eq!(out[..20], bytes);
}

/// "TCP implementations MUST be prepared to handle an illegal option length (e.g., zero)" (RFC 9293, MUST-7).
#[test]
fn impossible_lengths_are_errors_and_end_the_walk() {
    let table: [(&[u8], TcpOptionsError); 9] = [
        (&[2, 0, 0, 0], TcpOptionsError::LengthTooShort),
        (&[99, 1, 0, 0], TcpOptionsError::LengthTooShort),
        (&[2], TcpOptionsError::PastTheEnd),
        (&[1, 1, 1, 99], TcpOptionsError::PastTheEnd),
        (&[2, 4, 5], TcpOptionsError::PastTheEnd),
        (&[99, 5, 0, 0], TcpOptionsError::PastTheEnd),
        (&[2, 3, 0, 0], TcpOptionsError::WrongLength),
        (&[5, 6, 0, 0, 0, 0, 0, 0], TcpOptionsError::WrongLength),
        (&[4, 3, 0, 0], TcpOptionsError::WrongLength),
    ];
    for (bytes, error) in table {
        assert_eq!(TcpOptions::parse(bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn unknown_kinds_are_skipped_and_nothing_is_read_past_the_end_of_list() {
    assert_eq!(
        TcpOptions::parse(&[99, 4, 2, 0, 2, 4, 1, 0]),
        Ok(TcpOptions { mss: Some(256), ..TcpOptions::NONE })
    );
    assert_eq!(TcpOptions::parse(&[1, 0, 2, 0]), Ok(TcpOptions::NONE));
}

#[test]
fn window_scale_is_held_to_fourteen() {
    assert_eq!(TcpOptions::parse(&[3, 3, 200, 0]).map(|o| o.window_scale), Ok(Some(14)));
}

#[test]
fn four_sack_blocks_fit_and_a_fifth_does_not() {
    let mut options = TcpOptions::NONE;
    for i in 0..4 {
        assert!(options.sack.push(SackBlock { left: SeqNumber(i * 10), right: SeqNumber(i * 10 + 5) }));
    }
    assert!(!options.sack.push(SackBlock::default()));
    let mut out = [0; 40];
    assert_eq!(options.emit(&mut out), Ok(36));
    assert_eq!(TcpOptions::parse(&out[..36]), Ok(options));
    assert_eq!(options.emit(&mut out[..35]), Err(TcpOptionsError::BufferTooSmall));

    options.timestamps = Some(Timestamps::default());
    assert_eq!(options.sack_room(), 3);
    assert_eq!(options.emit(&mut out), Err(TcpOptionsError::TooLong));
}

/// "The options ... may begin on any octet boundary" and come in any order (RFC 9293 section 3.1, MUST-5 and MUST-6).
#[test]
fn options_are_read_in_every_order_and_with_any_padding() {
    let mss: &[u8] = &[2, 4, 5, 0xB4];
    let all: [&[u8]; 5] = [mss, &[3, 3, 9], &[4, 2], &[8, 10, 0, 0, 0, 1, 0, 0, 0, 2], &[253, 5, 8, 10, 3]];
    let wanted = TcpOptions {
        mss: Some(1460),
        window_scale: Some(9),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(1, 2)
    };
    let mut seen = 0;
    for order in 0..5usize.pow(5) {
        let at = |i: u32| order / 5usize.pow(i) % 5;
        let order = [at(0), at(1), at(2), at(3), at(4)];
        if (0..5).any(|i| !order.contains(&i)) {
            continue;
        }
        for pads in 0..64u8 {
            // All other positions are NOP.
            let (mut bytes, mut len) = ([1; 40], 0);
            for (i, option) in order.iter().map(|at| all[*at]).enumerate() {
                len += usize::from(pads >> i & 1);
                bytes[len..len + option.len()].copy_from_slice(option);
                len += option.len();
            }
            // Behind the end of the list, any bytes are allowed.
            let end: &[u8] = if pads >> 5 & 1 == 0 { &[] } else { &[0, 2, 0, 99] };
            bytes[len..len + end.len()].copy_from_slice(end);
            let bytes = &bytes[..len + end.len()];
            assert_eq!(TcpOptions::parse(bytes), Ok(wanted), "{bytes:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 120 * 64);
}
