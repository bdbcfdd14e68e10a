//! Curves over time as SVG text to be embedded in a page.

use plotters::prelude::*;

/// A curve, and how it is drawn.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The index of its colour.
    pub colour: usize,
    /// Times in seconds, and values.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 900;
const HEIGHT: u32 = 190;
const LEFT: u32 = 60;
const BELOW: u32 = 28;
/// Colours that are visible on white and on black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1B, 0x7F, 0xBD),
    RGBColor(0xD9, 0x82, 0x2B),
    RGBColor(0x6A, 0x9F, 0x3D),
    RGBColor(0x9B, 0x5F, 0xC0),
    RGBColor(0xC8, 0x4A, 0x5A),
    RGBColor(0x8A, 0x8A, 0x8A),
];
/// A placeholder for the page's own text colour.
const TEXT: RGBColor = RGBColor(1, 2, 3);
const TEXT_WRITTEN: &str = "#010203";

/// The colour of a curve, for a legend.
pub fn colour(index: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Draws curves from zero to the largest value over `seconds`.
///
/// # Errors
/// When the plotting library fails.
pub fn curves(curves: &[Curve], seconds: f64) -> Result<String, String> {
    let largest = curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let top = if largest > 0.0 { largest * 1.05 } else { 1.0 };
    let mut svg = String::new();
    draw(curves, seconds, top, &mut svg).map_err(|why| format!("cannot draw a plot: {why}"))?;
    Ok(svg.replace(TEXT_WRITTEN, "currentColor"))
}

type Failed = Box<dyn std::error::Error>;

fn draw(curves: &[Curve], seconds: f64, top: f64, svg: &mut String) -> Result<(), Failed> {
    let wrong = |why: DrawingAreaErrorKind<_>| -> Failed { why.to_string().into() };
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(6)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..seconds, 0.0..top)
        .map_err(wrong)?;
    chart
        .configure_mesh()
        .x_labels(11)
        .y_labels(5)
        .label_style(("sans-serif", 12).into_font().color(&TEXT))
        .axis_style(TEXT.stroke_width(1))
        .light_line_style(TRANSPARENT)
        .bold_line_style(TEXT.mix(0.15))
        .draw()
        .map_err(wrong)?;
    for curve in curves {
        let style = COLOURS[curve.colour % COLOURS.len()].stroke_width(1);
        chart.draw_series(std::iter::once(PathElement::new(curve.points.clone(), style))).map_err(wrong)?;
    }
    area.present().map_err(wrong)?;
    Ok(())
}
