//! Plots as SVG text to be embedded in a page.

use anyhow::anyhow;
use plotters::prelude::*;

use crate::report::number;

/// A bar of a plot: a median with its range.
#[derive(Clone, Copy, Debug)]
pub struct Bar<'a> {
    pub case: &'a str,
    pub system: &'a str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

const WIDTH: u32 = 900;
const ROW: i32 = 20;
/// In pixels: thickness of a bar, x where bars begin, x where the longest bar ends.
const THICK: i32 = 12;
const BEGIN: i32 = 380;
const END: i32 = 800;
/// Colours of the systems in the order of their appearance; visible on white and on black.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x1B, 0x7F, 0xBD),
    RGBColor(0xD9, 0x82, 0x2B),
    RGBColor(0x6A, 0x9F, 0x3D),
    RGBColor(0x9B, 0x5F, 0xC0),
    RGBColor(0x8A, 0x8A, 0x8A),
];
/// A placeholder for the page's own text colour.
const TEXT: RGBColor = RGBColor(1, 2, 3);
const TEXT_WRITTEN: &str = "#010203";

/// Draws a row for each bar: case and system, the bar with its range, and the number.
///
/// # Errors
/// When the plotting library fails.
pub fn bars(bars: &[Bar<'_>]) -> anyhow::Result<String> {
    let mut systems: Vec<&str> = Vec::new();
    for bar in bars {
        if !systems.contains(&bar.system) {
            systems.push(bar.system);
        }
    }
    let longest = bars.iter().map(|bar| bar.max).filter(|max| max.is_finite()).fold(0.0, f64::max);
    let place = |value: f64| {
        let share = if longest > 0.0 { (value / longest).clamp(0.0, 1.0) } else { 0.0 };
        BEGIN + (share * f64::from(END - BEGIN)) as i32
    };
    let mut svg = String::new();
    {
        let height = (bars.len() as u32) * ROW as u32 + 8;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        for (i, bar) in bars.iter().enumerate() {
            let top = 4 + i as i32 * ROW;
            let middle = top + THICK / 2;
            let system = systems.iter().position(|system| *system == bar.system).unwrap_or(0);
            let colour = COLOURS[system % COLOURS.len()];
            let body = [(BEGIN, top), (place(bar.median), top + THICK)];
            let range = [(place(bar.min), middle), (place(bar.max), middle)];
            let is_new = i == 0 || bars[i - 1].case != bar.case;
            let drawn = area
                .draw(&Rectangle::new(body, colour.filled()))
                .and_then(|()| area.draw(&PathElement::new(range, TEXT.stroke_width(1))))
                .and_then(|()| write(&area, bar.system, 270, top))
                .and_then(|()| write(&area, if is_new { bar.case } else { "" }, 0, top))
                .and_then(|()| write(&area, &number(Some(bar.median)), END + 10, top));
            drawn.map_err(|error| anyhow!("cannot draw a plot: {error}"))?;
        }
        area.present().map_err(|error| anyhow!("cannot draw a plot: {error}"))?;
    }
    Ok(svg.replace(TEXT_WRITTEN, "currentColor"))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn write<'a>(area: &Area<'a>, text: &str, x: i32, y: i32) -> DrawResult<'a> {
    area.draw(&Text::new(text.to_owned(), (x, y), ("sans-serif", 13).into_font().color(&TEXT)))
}
